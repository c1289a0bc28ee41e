"""Processes that get a part of their time only: machines that are too hot, and answers that run for as long as a test
needs, however quick or busy the machine that it runs on is.

They take turns: on a busy machine they are awake for longer, until each thread of each of them has run, so that none
is silent for so long that it is taken for dead.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

#: Far below the silence that has a node taken for dead: it is awake several times before.
_LONGEST_REST_S = 0.2
#: Of a turn, what is left of it for those that owe rest: enough to say that they live.
_LEAST = 0.25
_LOOK_S = 0.003
#: As quick as can be, where that is allowed: who ends a rest must not wait behind ten other processes.
_FIRST = -20


@contextlib.contextmanager
def crawling(nodes: Sequence[psutil.Process]) -> Iterator[None]:
    """Gives the nodes a twentieth of their time: 900 tokens take at least twenty seconds. New nodes run at full speed.

    A node that rests in its FFN may count as slow unless the master's speed is UNMEASURED.
    """
    with _in_turns(nodes, _Turn.used_s, awake_s=0.01, part=20):
        yield


@contextlib.contextmanager
def _in_turns(
    nodes: Sequence[psutil.Process], time_of: Callable[["_Turn"], float], awake_s: float, part: int
) -> Iterator[None]:
    """Alternates rest and work. More rest than the longest may be due if they could not be stopped in time; it follows
    after turns that are as short as possible."""
    over = threading.Event()

    def take_turns(handles: Sequence[int]) -> None:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _FIRST)
        owed_s = (part - 1) * awake_s
        while not over.is_set():
            _tell(handles, signal.SIGSTOP)
            began = time.monotonic()
            over.wait(min(owed_s, _LONGEST_REST_S))
            owed_s = max(0.0, owed_s - (time.monotonic() - began))
            turn = _Turn(nodes)
            _tell(handles, signal.SIGCONT)
            wanted_s = awake_s * (_LEAST if owed_s else 1)
            while (lacks_s := wanted_s - time_of(turn)) > 0 or not turn.reached_all():
                if over.wait(max(lacks_s, _LOOK_S)):  # none of them can have had it any sooner
                    break
            owed_s += (part - 1) * max(0.0, time_of(turn))

    with contextlib.ExitStack() as stack:
        handles = [os.pidfd_open(node.pid) for node in nodes]  # they may end, and others have their numbers
        for handle in handles:
            stack.callback(os.close, handle)
        thread = threading.Thread(target=take_turns, args=[handles])
        thread.start()
        stack.callback(thread.join)
        stack.callback(over.set)
        yield


class _Turn:
    """The time that processes ran since it was made."""

    def __init__(self, nodes: Sequence[psutil.Process]) -> None:
        self._before = [(node, _run_ns(node)) for node in nodes]

    def used_s(self) -> float:
        """The processor time of the node that had most."""
        return max(sum(_run_ns(node).values()) - sum(before.values()) for node, before in self._before) / 1e9

    def reached_all(self) -> bool:
        """Whether each thread has run, and so the one that says that its node lives."""
        return all(
            thread not in now or now[thread] > ran
            for node, before in self._before
            for now in [_run_ns(node)]
            for thread, ran in before.items()
        )


def _run_ns(node: psutil.Process) -> dict[str, int]:
    """The processor time of each thread; none where the node has ended, as another epoch has another one."""
    found = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        if node.status() != psutil.STATUS_ZOMBIE:
            for path in Path(f"/proc/{node.pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):
                    found[path.parent.name] = int(path.read_text().split()[0])
    return found


def _tell(handles: Sequence[int], number: signal.Signals) -> None:
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(handle, number)
