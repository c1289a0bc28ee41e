"""From the blocking iterator of a generation to asyncio: one thread per running answer.

Laws:

1. The thread ends when the iterator does, and the iterator ends soon after `cancel` or `complete`.
2. No more than `_AHEAD` events wait for the client: a slow reader holds the thread back, not memory.
3. Everything that can end an answer (an error, a deadline, a client that leaves) comes through the same queue.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable

from tpiedge.api.service import AnswerEvent, Generation
from tpiedge.errors import InternalError

__all__ = ["StreamBridge"]

_AHEAD = 256


class StreamBridge:
    """For one event loop, on which all methods but `join` are called."""

    def __init__(self, generation: Generation, name: str) -> None:
        self._generation = generation
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[AnswerEvent | BaseException] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"answer {name}", daemon=True)
        self._thread.start()

    async def next(self, within_s: float) -> AnswerEvent | None:
        """The next event; None if there is none `within_s`. Raises what ended the answer."""
        try:
            async with asyncio.timeout(within_s):
                item = await self._queue.get()
        except TimeoutError:
            return None
        if isinstance(item, BaseException):
            raise item
        self._room.release()
        return item

    def end(self, error: BaseException) -> None:
        """Have `next` raise `error`, after what came before it."""
        self._queue.put_nowait(error)

    def cancel(self) -> None:
        """Stop the work; nothing more is passed on. Idempotent."""
        self._stop(self._generation.cancel)

    def complete(self) -> None:
        """As `cancel`, because the answer is whole."""
        self._stop(self._generation.complete)

    def join(self, limit_s: float) -> bool:
        """Whether the thread has ended within the time."""
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
                    self._post(event)
        except BaseException as raised:  # handed to the client's coroutine
            error = raised
        self._post(error)

    def _post(self, item: AnswerEvent | BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
