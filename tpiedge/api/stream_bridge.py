"""From the threads of the cluster to asyncio: the events of one answer, for the coroutine that sends them.

A generation is a blocking iterator, which a thread hears. An answer has one for each of its choices that are written at
a time (`StreamBridge`).

Laws:

1. An iterator ends soon after `cancel` or `complete`; its thread hears a further choice then, or ends.
2. No more than `_AHEAD` events of a choice wait for the client: a slow reader holds the thread back, not memory.
3. Everything that can end an answer (an error, a deadline, a client that leaves) comes through the same queue.
4. A client's choices take turns (`further_choices.py`): a further one is asked for when one has ended, and again and
   again where the queue is full.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol, TypeAlias

from tpiedge.api.further_choices import FurtherChoices
from tpiedge.api.service import AnswerEvent, Busy, Generation
from tpiedge.errors import InternalError, TpiedgeError
from tpiedge.wire.control import Finished

_AHEAD = 256

ChoiceEvent: TypeAlias = tuple[int, AnswerEvent]
"""An event with the number of the choice that it is of."""


class AnswerFeed(Protocol):
    """For one event loop, on which all methods but `join` are called."""

    async def next(self, within_s: float) -> ChoiceEvent | None:
        """The next event; None if there is none `within_s`. Raises what ended the answer."""
        ...

    def end(self, error: BaseException) -> None:
        """Have `next` raise `error`, after what came before it."""
        ...

    def cancel(self) -> None:
        """Stop the work; nothing more is passed on. Idempotent."""
        ...

    def complete(self, choice: int) -> None:
        """Stop the work on that choice because it is whole. Idempotent."""
        ...

    def join(self, limit_s: float) -> bool:
        """Whether its threads, if it has any, have ended within the time."""
        ...


class EventQueue:
    """Read on the event loop `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[ChoiceEvent | BaseException] = asyncio.Queue()

    async def next(self, within_s: float) -> ChoiceEvent | None:
        """As AnswerFeed.next."""
        if self._queue.empty():
            try:
                async with asyncio.timeout(within_s):
                    item = await self._queue.get()
            except TimeoutError:
                return None
        else:
            item = self._queue.get_nowait()
        if isinstance(item, BaseException):
            raise item
        return item

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be taken."""
        return self._queue.empty()

    def put(self, item: ChoiceEvent | BaseException) -> None:
        """On the event loop."""
        self._queue.put_nowait(item)

    def post(self, item: ChoiceEvent | BaseException) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)


class StreamBridge:
    """An `AnswerFeed` of generations."""

    def __init__(
        self,
        name: str,
        generations: Sequence[Generation],
        further: FurtherChoices,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`generations`: of the first choices; `further`: those that have their turn later. `name`: of the threads.
        Made beside `loop`, which reads it: threads that start are waited for, which is long where all processors are
        busy. Raises RuntimeError, with everything cancelled, where the system has no thread left."""
        self._events = EventQueue(loop)
        self._further = further
        self._listeners: list[_Listener] = []
        self._hearings: list[_Hearing] = []
        self._over = False
        try:
            for _ in generations:
                self._listeners.append(_Listener(f"answer {name}"))
        except RuntimeError:
            for generation in generations:
                generation.cancel()
            self.cancel()
            raise
        for listener, generation in zip(self._listeners, generations, strict=True):
            self._hear(generation, listener)

    async def next(self, within_s: float) -> ChoiceEvent | None:
        event = await self._events.next(within_s)
        if event is not None:
            self._hearings[event[0]].took()
        return event

    def end(self, error: BaseException) -> None:
        self._events.put(error)

    def cancel(self) -> None:
        self._over = True
        self._further.close()
        for hearing in self._hearings:
            hearing.cancel()
        for listener in self._listeners:
            listener.end()

    def complete(self, choice: int) -> None:
        hearing = self._hearings[choice]
        if not hearing.stopped:
            hearing.complete()
            self._ask(hearing.listener)

    def join(self, limit_s: float) -> bool:
        if not self._over and self._further.count:
            return False  # others have their turn yet
        deadline = time.monotonic() + limit_s
        return all(listener.join(max(0.0, deadline - time.monotonic())) for listener in self._listeners)

    def _ask(self, listener: "_Listener") -> None:
        """For the next choice, if one waits, which that thread hears."""
        if self._over or not self._further.count:
            listener.end()
            return
        try:
            generation = self._further.submit()
        except Busy as busy:
            asyncio.get_running_loop().call_later(busy.retry_after_s, self._ask, listener)
        except TpiedgeError as error:
            self._events.put(error)
        else:
            self._hear(generation, listener)

    def _hear(self, generation: Generation, listener: "_Listener") -> None:
        hearing = _Hearing(generation, listener, len(self._hearings), self._events.post)
        self._hearings.append(hearing)
        listener.hear(hearing)


class _Hearing:
    """Of one generation, by `listener`."""

    def __init__(
        self,
        generation: Generation,
        listener: "_Listener",
        choice: int,
        post: Callable[[ChoiceEvent | BaseException], None],
    ) -> None:
        self.listener = listener
        self._generation = generation
        self._choice = choice
        self._post = post
        # Counts of one thread each, and no lock: its holder could be kept from a busy processor, and the event loop,
        # with all answers, would wait for that.
        self._posted = self._taken = 0
        self._waits = False
        self._room = threading.Event()
        self._stopped = threading.Event()

    @property
    def stopped(self) -> bool:
        """Nothing more is wanted of it."""
        return self._stopped.is_set()

    def took(self) -> None:
        """One of its events was taken."""
        self._taken += 1
        if self._waits:
            self._room.set()

    def cancel(self) -> None:
        self._stop(self._generation.cancel)

    def complete(self) -> None:
        self._stop(self._generation.complete)

    def run(self) -> None:
        """Pass its events on until it ends: in the listener's thread."""
        ended = False
        try:
            for event in self._generation.events():
                ended = isinstance(event, Finished)
                if not self._stopped.is_set():
                    self._await_room()
                    self._posted += 1
                    self._post((self._choice, event))
            if not ended:
                raise InternalError("the answer ended without its end: report it")
        except BaseException as error:  # handed to the client's coroutine
            # What is whole already fails no other choice.
            if not self._stopped.is_set():
                self._post(error)

    def _stop(self, tell: Callable[[], None]) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            tell()
            self._room.set()  # the thread may wait for a reader that is gone

    def _await_room(self) -> None:
        """Until fewer wait than may. Whoever takes one after the second look sees that this thread waits."""
        while self._full():
            self._waits = True
            self._room.clear()
            if self._full():
                self._room.wait()
            self._waits = False

    def _full(self) -> bool:
        return self._posted - self._taken >= _AHEAD and not self._stopped.is_set()


class _Listener:
    """A thread that hears one generation after the other."""

    def __init__(self, name: str) -> None:
        """Raises RuntimeError where the system has no thread left."""
        self._next: SimpleQueue[_Hearing | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def hear(self, hearing: _Hearing) -> None:
        """After those before."""
        self._next.put(hearing)

    def end(self) -> None:
        """After those before. Idempotent."""
        self._next.put(None)

    def join(self, limit_s: float) -> bool:
        """Whether it has ended within the time."""
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (hearing := self._next.get()) is not None:
            hearing.run()
