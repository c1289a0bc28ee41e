"""Processes that get a part of their time only: machines that are too hot, and answers that run for as long as a test
needs, however quick or busy the machine that it runs on is."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

import psutil

__all__ = ["crawling", "slowed_down"]

_AWAKE_S = 0.01
#: Of the time since they were woken: what runs for longer than it was meant to, as beside ten other processes, rests
#: for longer, too.
_RESTS = 19
#: Far below the silence that has a node taken for dead.
_REST_S = 0.4


@contextlib.contextmanager
def slowed_down(node: psutil.Process) -> Iterator[None]:
    """It gets a fifth of its time, as a machine that is too hot."""
    with _in_turns([node], awake_s=0.02, rests=4, rest_s=0.08):
        yield


@contextlib.contextmanager
def crawling(nodes: Sequence[psutil.Process]) -> Iterator[None]:
    """All of them get a twentieth of their time. An answer of 900 tokens takes at least twenty seconds; what starts
    meanwhile is quick.

    Which of them is stopped in its FFN is chance, and what that takes, too: after half a minute somebody is taken for
    many times slower than the others, where the master's machine has a speed to compare with (UNMEASURED).
    """
    with _in_turns(nodes, _AWAKE_S, _RESTS, _REST_S):
        yield


@contextlib.contextmanager
def _in_turns(nodes: Sequence[psutil.Process], awake_s: float, rests: float, rest_s: float) -> Iterator[None]:
    over = threading.Event()

    def take_turns() -> None:
        rest = rest_s
        while not over.is_set():
            for node in nodes:
                _tell(node, "suspend")
            over.wait(rest)
            woken = time.monotonic()
            for node in nodes:
                _tell(node, "resume")
            over.wait(awake_s)
            rest = min((time.monotonic() - woken) * rests, rest_s)

    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _tell(node: psutil.Process, verb: str) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # another epoch has another one
        getattr(node, verb)()
