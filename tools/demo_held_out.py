"""Write the text that the demo model is measured with: `python tools/demo_held_out.py tpiedge/model/demo/held_out.txt`.

Stories of the demo corpus from a seed that neither the tokenizer nor the weights have seen, with a form feed between
two of them. Stories alone: there are too few of the corpus's shorter texts for none of them to come twice, and the
model has not learnt what a user says.
"""

import argparse
import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tools.demo_stories import story_text

SEED = 771_001
DOCUMENTS = 64


def stories() -> Iterator[str]:
    rng = random.Random(SEED)
    while True:
        yield story_text(rng)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args().file
    text = "\f".join(itertools.islice(stories(), DOCUMENTS))
    file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
