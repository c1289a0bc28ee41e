"""The time of threads, and that of the event loop, divided among clients so that none of them can take all of it."""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from tpiedge.portions import Portions

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Of one client: what is to be done, and who waits for it; `undo` it where nobody does any more."""

    client: str
    work: Callable[[], Any]
    undo: Callable[[Any], None] | None
    promised: "asyncio.Future[Any]"


class FairTurns:
    """For one event loop. In a turn of it each client does one thing; what more it wants to do, it does in the next
    turns, in the order in which it asked."""

    def __init__(self) -> None:
        #: Of each client that did something in this turn: what it is to do in the next ones.
        self._waiting: dict[str, deque[Callable[[], None]]] = {}

    def ask(self, client: str, act: Callable[[], None]) -> None:
        """Has `act` called: now, if it is the client's first in this turn."""
        if client in self._waiting:
            self._waiting[client].append(act)
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting[client] = deque()
        act()

    def _next(self) -> None:
        self._waiting = {client: acts for client, acts in self._waiting.items() if acts}
        if self._waiting:
            loop = asyncio.get_running_loop()
            for acts in self._waiting.values():
                loop.call_soon(acts.popleft())
            loop.call_soon(loop.call_soon, self._next)  # not before the turn of these has ended


class FairThreads:
    """For one event loop. `count` threads, in which clients have their turns: of each the oldest work first. They start
    with the first work; where the system has not so many, fewer do it."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._threads: list[threading.Thread] = []
        self._begun: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._running = Portions(count)
        #: Who waits, the one whose turn is next first.
        self._waiting: dict[str, deque[_Piece]] = {}

    def start(
        self, client: str, work: Callable[[], _T], undo: Callable[[_T], None] | None = None
    ) -> "asyncio.Future[_T]":
        """What `work` returns or raises, once it had its turn. If it is cancelled before, nothing is done; if later,
        what was done is undone, on the event loop. Raises RuntimeError where the system has no thread."""
        if not self._threads:
            self._start_all()
        promised: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        piece = _Piece(client, work, undo, promised)
        promised.add_done_callback(lambda _: self._forget(piece))
        self._waiting.setdefault(client, deque()).append(piece)
        self._fill()
        return promised

    def close(self, limit_s: float) -> None:
        """After the event loop has ended. Waits for what runs, in all at most that long: its threads keep no process
        from ending. What waits never runs."""
        deadline = time.monotonic() + limit_s
        for _ in self._threads:
            self._begun.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start_all(self) -> None:
        for number in range(self._count):
            thread = threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left
                if not self._threads:
                    raise
                break
            self._threads.append(thread)
        self._running = Portions(len(self._threads))

    def _forget(self, piece: _Piece) -> None:
        """What is not to be done any more is not kept until its client has a turn: it may be large."""
        own = self._waiting.get(piece.client)
        if own is not None and piece in own:
            own.remove(piece)
            if not own:
                del self._waiting[piece.client]

    def _fill(self) -> None:
        """As many work as may."""
        while (client := next(filter(self._running.take, self._waiting), None)) is not None:
            own = self._waiting.pop(client)
            job = own.popleft()
            if own:
                self._waiting[client] = own  # behind the others
            if job.promised.cancelled():
                self._running.leave(client)
            else:
                self._begun.put(partial(_do, job, asyncio.get_running_loop(), self._end))

    def _work(self) -> None:
        while (begun := self._begun.get()) is not None:
            begun()
            del begun  # or what was done would be kept until there is more to do

    def _end(self, job: _Piece, result: Any, error: BaseException | None) -> None:
        self._running.leave(job.client)
        self._fill()
        if not job.promised.cancelled():
            if error is None:
                job.promised.set_result(result)
            else:
                job.promised.set_exception(error)
        elif error is None and job.undo is not None:
            job.undo(result)


def _do(
    job: _Piece, loop: asyncio.AbstractEventLoop, end: Callable[[_Piece, Any, BaseException | None], None]
) -> None:
    """In a thread."""
    result: Any = None
    error: BaseException | None = None
    try:
        result = job.work()
    except StopIteration as stop:  # which nobody who awaits can be told
        error = RuntimeError("work raised StopIteration").with_traceback(stop.__traceback__)
    except BaseException as raised:
        error = raised
    with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
        loop.call_soon_threadsafe(end, job, result, error)
