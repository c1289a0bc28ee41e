"""How a command is told to end: a polite kill and a terminal that goes away arrive as an exception."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tpiedge.cli.interrupts import Terminated
from tpiedge.cli.scribe import Scribe, log_by_scribe


def honour_signals() -> None:
    """Commands end in order, children included. For the main thread."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, _terminate)
    # A stopped master would be lost to its nodes within two seconds: Ctrl-Z cannot be honoured.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)


@contextmanager
def serving_until_stopped(next_time: str) -> Iterator[Scribe]:
    """A service: one that a polite kill stops has done its work. Ctrl-C says what is so the `next_time`. What is logged
    meanwhile holds no thread up; nor does what is said by the scribe."""
    try:
        with interrupt_says(f"stopped; {next_time}"), log_by_scribe() as scribe:
            yield scribe
    except Terminated:
        pass


@contextmanager
def interrupt_says(words: str) -> Iterator[None]:
    """Ctrl-C meanwhile ends the command with these words, unless a block within has said others."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(*(interrupt.args or (words,))) from None


def _terminate(_signal: int, _frame: object) -> None:
    raise Terminated
