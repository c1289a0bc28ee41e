"""The console script, and the signals that end a command. The module imports little."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> None:
    open_standard_files()
    os.umask(0o077)  # keys, answers and models are their user's alone, wherever they are written
    try:
        sys.unraisablehook = _raise_again
        from tpiedge.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("tpiedge: interrupted\n")
        sys.exit(130)


def open_standard_files() -> None:
    """Replaces closed standard files by /dev/null."""
    # Children would use other files as standard files.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)
        # Never closed, like the files that Python makes itself.
        setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


class Terminated(BaseException):
    """Raised on SIGTERM or SIGHUP to end the command. A KeyboardInterrupt may stop an answer while the command
    goes on."""


_SIGNALS = {KeyboardInterrupt: signal.SIGINT, Terminated: signal.SIGTERM}


def _raise_again(lost: "sys.UnraisableHookArgs") -> None:
    """Raises an interrupt again that Python dropped in a finaliser or callback."""
    number = _SIGNALS.get(lost.exc_type)
    if number is None:
        sys.__unraisablehook__(lost)
        return
    # Later, because this still runs in the same callback.
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
    signal.setitimer(signal.ITIMER_REAL, 0.001)


def honour_signals() -> None:
    """Makes SIGTERM and SIGHUP raise Terminated, and ignores Ctrl-Z. Call it in the main thread."""

    def terminate(_signal: int, _frame: object) -> None:
        raise Terminated

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, terminate)
    # Ctrl-Z is ignored: nodes would lose a stopped master within two seconds.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)


@contextmanager
def interrupt_says(words: str) -> Iterator[None]:
    """Sets the words to print if Ctrl-C ends the command. An inner block's words replace an outer block's."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(*(interrupt.args or (words,))) from None
