"""The console script: an interrupt during the imports ends as quietly as one later."""

import sys

__all__ = ["main"]


def main() -> None:
    """`tpiedge`."""
    try:
        from tpiedge.cli.interrupts import raise_lost_interrupts

        raise_lost_interrupts()
        from tpiedge.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("tpiedge: interrupted\n")
        sys.exit(130)
