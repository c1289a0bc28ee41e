"""The console script, and how a command is told to end: what a signal raises, wherever it arrives, and what Ctrl-C
says.

An interrupt during the imports ends as quietly as one later, so this module imports little: nothing before it is
protected. Standard files that are closed count as /dev/null.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> None:
    open_standard_files()
    os.umask(0o077)  # keys, answers and models are their user's alone, wherever they are written
    try:
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


class Terminated(BaseException):
    """A polite kill: not KeyboardInterrupt, which a chat takes for the end of one answer."""


_SIGNALS = {KeyboardInterrupt: signal.SIGINT, Terminated: signal.SIGTERM}


def raise_lost_interrupts() -> None:
    """From now on, an interrupt that arrives where the interpreter drops exceptions is raised again a moment later: in
    the callback of a weak reference, of which each import has one, or in a finaliser. For the main thread."""
    sys.unraisablehook = _raise_again


def _raise_again(lost: "sys.UnraisableHookArgs") -> None:
    number = _SIGNALS.get(lost.exc_type)
    if number is None:
        sys.__unraisablehook__(lost)
        return
    # Not at once: that would be in the same callback still.
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
    signal.setitimer(signal.ITIMER_REAL, 0.001)


def honour_signals() -> None:
    """Commands end in order, children included. For the main thread."""

    def terminate(_signal: int, _frame: object) -> None:
        raise Terminated

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, terminate)
    # A stopped master would be lost to its nodes within two seconds: Ctrl-Z cannot be honoured.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)


@contextmanager
def interrupt_says(words: str) -> Iterator[None]:
    """Ctrl-C meanwhile ends the command with these words, unless a block within has said others."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(*(interrupt.args or (words,))) from None
