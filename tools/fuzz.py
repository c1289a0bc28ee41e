"""Made-up inputs for all parsers of untrusted bytes: each must be read, or refused in one line.

    .venv/bin/python tools/fuzz.py [--parser gguf] [--inputs 1000000] [--jobs 2] [--seed 1] [--findings DIR]
    .venv/bin/python tools/fuzz.py --parser gguf --replay FILE...

Without --parser all of them, one after the other. A line of JSON each: inputs, how many were in order, seconds, and
findings, whose inputs are in DIR with a text that says what happened. The status is 1 where there are any.
"""

import argparse
import json
import secrets
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.fuzz.campaign import Campaign
from tests.fuzz.parsers import PARSERS


def main() -> int:
    options = _options()
    names = options.parser or list(PARSERS)
    found = False
    for name in names:
        campaign = Campaign(name, options.seed, options.findings)
        ends = time.monotonic() + options.seconds
        if options.replay:
            report = campaign.replay(options.replay)
        else:
            report = campaign.run(options.inputs, options.jobs, partial(_is_over, ends))
        record = {
            "parser": name,
            "seed": options.seed,
            "inputs": report.inputs,
            "in_order": report.accepted,
            "seconds": round(report.seconds, 1),
            "findings": {kind: str(path) for kind, path in report.findings.items()},
        }
        print(json.dumps(record), flush=True)
        found = found or bool(report.findings)
    return 1 if found else 0


def _is_over(ends: float) -> bool:
    return time.monotonic() > ends


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parser", action="append", choices=list(PARSERS), help="repeatable")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of each parser")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most, for each parser")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="[default: a new one]")
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz"), metavar="DIR")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE", help="instead of new inputs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
