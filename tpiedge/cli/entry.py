"""The console script: an interrupt during the imports ends as quietly as one later."""

import sys

__all__ = ["main"]


def main() -> None:
    """`tpiedge`."""
    try:
        from tpiedge.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("tpiedge: interrupted\n")
        sys.exit(130)
    run()
