"""What a signal raises to end a command, wherever it arrives. Imports little: nothing before it is protected."""

import signal
import sys

_AGAIN_S = 0.001


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
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
