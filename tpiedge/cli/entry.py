"""The console script: an interrupt during the imports ends as quietly as one later, and standard files that are closed
count as /dev/null."""

import os
import sys


def main() -> None:
    """`tpiedge`."""
    open_standard_files()
    os.umask(0o077)  # keys, answers and models are their user's alone, wherever they are written
    try:
        from tpiedge.cli.interrupts import raise_lost_interrupts

        raise_lost_interrupts()
        from tpiedge.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("tpiedge: interrupted\n")
        sys.exit(130)


def open_standard_files() -> None:
    """Opens /dev/null in place of each standard file that was closed at the start, as some starters of processes leave
    it: Python has None for it, and the next file or socket would get its number, which children take for theirs."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)
        # Never closed, as the files that Python makes itself.
        setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
