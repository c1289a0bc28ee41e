"""From the threads of the cluster to asyncio: the events of one answer, for the coroutine that sends them.

A generation is a blocking iterator, which has a thread of its own here (`StreamBridge`).

Laws:

1. The thread ends when the iterator does, and the iterator ends soon after `cancel` or `complete`.
2. No more than `_AHEAD` events wait for the client: a slow reader holds the thread back, not memory.
3. Everything that can end an answer (an error, a deadline, a client that leaves) comes through the same queue.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Protocol

from tpiedge.api.service import AnswerEvent, Generation
from tpiedge.errors import InternalError

__all__ = ["AnswerFeed", "EventQueue", "StreamBridge"]

_AHEAD = 256


class AnswerFeed(Protocol):
    """For one event loop, on which all methods but `join` are called."""

    async def next(self, within_s: float) -> AnswerEvent | None:
        """The next event; None if there is none `within_s`. Raises what ended the answer."""
        ...

    def end(self, error: BaseException) -> None:
        """Have `next` raise `error`, after what came before it."""
        ...

    def cancel(self) -> None:
        """Stop the work; nothing more is passed on. Idempotent."""
        ...

    def complete(self) -> None:
        """As `cancel`, because the answer is whole."""
        ...

    def join(self, limit_s: float) -> bool:
        """Whether its thread, if it has one, has ended within the time."""
        ...


class EventQueue:
    """Made on the event loop that reads it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[AnswerEvent | BaseException] = asyncio.Queue()

    async def next(self, within_s: float) -> AnswerEvent | None:
        """As AnswerFeed.next."""
        try:
            async with asyncio.timeout(within_s):
                item = await self._queue.get()
        except TimeoutError:
            return None
        if isinstance(item, BaseException):
            raise item
        return item

    def put(self, item: AnswerEvent | BaseException) -> None:
        """On the event loop."""
        self._queue.put_nowait(item)

    def post(self, item: AnswerEvent | BaseException) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)


class StreamBridge:
    """An `AnswerFeed` of a generation."""

    def __init__(self, generation: Generation, name: str) -> None:
        self._generation = generation
        self._events = EventQueue()
        self._room = threading.Semaphore(_AHEAD)
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"answer {name}", daemon=True)
        self._thread.start()

    async def next(self, within_s: float) -> AnswerEvent | None:
        event = await self._events.next(within_s)
        if event is not None:
            self._room.release()
        return event

    def end(self, error: BaseException) -> None:
        self._events.put(error)

    def cancel(self) -> None:
        self._stop(self._generation.cancel)

    def complete(self) -> None:
        self._stop(self._generation.complete)

    def join(self, limit_s: float) -> bool:
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _stop(self, tell: Callable[[], None]) -> None:
        if not self._cancelled.is_set():
            self._cancelled.set()
            tell()
            self._room.release()  # the thread may wait for a reader that is gone

    def _run(self) -> None:
        error: BaseException = InternalError("the answer ended without its end: report it")
        try:
            for event in self._generation.events():
                if not self._cancelled.is_set():
                    self._room.acquire()
                    self._events.post(event)
        except BaseException as raised:  # handed to the client's coroutine
            error = raised
        self._events.post(error)
