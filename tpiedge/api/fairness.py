"""What is divided among clients so that none of them can take all of it: counts, and the time of threads. For one event
loop.

A client is a text of which nothing else is known here, as in `master/turns.py`, whose third law is this one: nobody has
more than half of all, nor more than is left by the others; so each further client that floods takes half of what is
left, at most.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

__all__ = ["FairThreads", "Shares"]

_START_S = 10.0

_T = TypeVar("_T")
_Piece = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Shares:
    """Counts what each client holds of `total`."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._held: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """By all clients."""
        return self._held.total()

    def held(self, client: str) -> int:
        return self._held[client]

    def take(self, client: str, count: int = 1) -> bool:
        """Whether it may have `count` more, which it holds then."""
        left = self._total - self.taken
        if self._held[client] + count > min(self._total // 2, left):
            return False
        self._held[client] += count
        return True

    def leave(self, client: str, count: int = 1) -> None:
        """It holds `count` less."""
        self._held[client] -= count
        if not self._held[client]:
            del self._held[client]


class FairThreads:
    """`count` threads, in which clients have their turns: of each the oldest work first. They start with the first."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._count = count
        self._started = False
        self._running = Shares(count)
        #: Who waits, the one whose turn is next first.
        self._waiting: dict[str, deque[_Piece]] = {}

    def start(self, client: str, work: Callable[[], _T]) -> "asyncio.Future[_T]":
        """What `work` returns or raises, once it had its turn."""
        if not self._started:
            self._started = True
            self._start_all()
        promised: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append((work, promised))
        self._fill()
        return promised

    def close(self) -> None:
        """After the event loop has ended. Waits for what runs; what waits never runs."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start_all(self) -> None:
        """The pool would start one more now and then, where work comes before a thread is known to be idle."""
        together = threading.Barrier(self._count, timeout=_START_S)
        try:
            for _ in range(self._count):
                self._pool.submit(together.wait)
        except RuntimeError:  # the system has no thread left: those that have started do the work
            together.abort()

    def _fill(self) -> None:
        while (client := next(filter(self._running.take, self._waiting), None)) is not None:
            own = self._waiting.pop(client)
            work, promised = own.popleft()
            if own:
                self._waiting[client] = own  # behind the others
            running = asyncio.get_running_loop().run_in_executor(self._pool, work)
            running.add_done_callback(partial(self._ended, client, promised))

    def _ended(self, client: str, promised: "asyncio.Future[Any]", running: "asyncio.Future[Any]") -> None:
        self._running.leave(client)
        if (error := running.exception()) is not None:
            promised.set_exception(error)
        else:
            promised.set_result(running.result())
        self._fill()
