"""How a command is told to end: a polite kill and a terminal that goes away arrive as an exception."""

import signal

__all__ = ["Terminated", "honour_signals"]


class Terminated(BaseException):
    """A polite kill: not KeyboardInterrupt, which a chat takes for the end of one answer."""


def honour_signals() -> None:
    """Commands end in order, children included. For the main thread."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, _terminate)
    # A stopped master would be lost to its nodes within two seconds: Ctrl-Z cannot be honoured.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)


def _terminate(_signal: int, _frame: object) -> None:
    raise Terminated
