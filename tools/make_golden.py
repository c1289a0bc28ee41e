"""Writes what comes of the requests of the golden tables, tests/golden/*/*.jsonl.

python -m tools.make_golden          # writes the tables
python -m tools.make_golden --check  # status 1 where one is not what it would be
"""

import logging
import sys

from tests.golden.tables import FOLDER, TABLES, table, written


def main() -> int:
    words = sys.argv[1:]
    if words not in ([], ["--check"]):
        print(__doc__)
        return 0 if words == ["--help"] else 2
    logging.disable(logging.WARNING)  # which are of fields without an effect
    changed = [(name, text) for name in TABLES if (text := written(name)) != table(name)]
    for name, text in changed:
        print(f"{name} is not what it would be" if words else f"{name} has changed")
        if not words:
            (FOLDER / name).write_text(text, encoding="utf-8")
    return 1 if words and changed else 0


if __name__ == "__main__":
    sys.exit(main())
