"""The requests of a serving cluster: some run, others wait, and each ends exactly once.

Laws:
1. A request that was accepted ends exactly once: with Finished, or with an error that says why.
2. Requests start in the order in which they were accepted, and at most `parallel` of them run at once.
3. A node's message about a request that does not run is dropped.
4. A running request's cancellation is passed on after the request itself, and changes nothing for the others.
5. What is wrong with the whole cluster fails every running request, and no waiting one.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Final, NoReturn

from tpiedge.errors import Cancelled, InternalError, ProtocolError, TpiedgeError, UserError
from tpiedge.master.status import Totals
from tpiedge.wire.control import Failed, Finished, PromptScores, Token
from tpiedge.wire.messages import Message
from tpiedge.wire.requests import GenerationRequest

__all__ = ["QUEUE_LIMIT", "PendingAnswer", "QueueFull", "RequestQueue"]

#: Requests that may wait; more are refused.
QUEUE_LIMIT: Final = 64


_Event = Token | PromptScores | Finished | TpiedgeError


class QueueFull(TpiedgeError):
    """As many requests wait as the master admits."""


class PendingAnswer:
    """One accepted request, for the thread that submitted it. Made by `RequestQueue.submit`."""

    def __init__(self, request: GenerationRequest, cancel: Callable[["PendingAnswer"], None]) -> None:
        self.request = request
        #: Whether the caller has all that it wanted.
        self.whole = False
        self._cancel = cancel
        self._events: queue.Queue[_Event] = queue.Queue()

    def events(self) -> Iterator[Token | PromptScores | Finished]:
        """The request's events, up to Finished. Blocks between them; raises the error that ended the request.

        Closing the iterator early cancels the request.
        """
        ended = False
        try:
            while not ended:
                event = self._events.get()  # bounded by the first law
                ended = isinstance(event, Finished | TpiedgeError)
                if isinstance(event, TpiedgeError):
                    raise event
                yield event
        finally:
            if not ended:
                self.cancel()

    def cancel(self) -> None:
        """Ends the request early. Thread-safe, idempotent, does not block."""
        self._cancel(self)

    def complete(self) -> None:
        """Ends the request early as a success, because its answer is whole (a stop string). Otherwise like `cancel`."""
        self.whole = True
        self.cancel()

    def put(self, event: _Event) -> None:
        """Adds an event; for RequestQueue alone."""
        self._events.put(event)


class RequestQueue:
    """Up to `limit` requests wait and up to `parallel` run; their ids must differ. Thread-safe; nothing blocks.

    `on_cancel(id)` is called when a running request is cancelled, `on_submit()` after each accepted one. `on_cancel`
    must not call back.
    """

    def __init__(
        self, limit: int, parallel: int, on_cancel: Callable[[str], None], on_submit: Callable[[], None]
    ) -> None:
        self._limit = limit
        self._parallel = parallel
        self._on_cancel = on_cancel
        self._on_submit = on_submit
        self._lock = threading.Lock()
        self._waiting: deque[PendingAnswer] = deque()
        self._running: dict[str, PendingAnswer] = {}  # by id, in the order of their start
        self._closed: TpiedgeError | None = None
        self._totals = Totals()

    @property
    def totals(self) -> Totals:
        """Counts of the requests so far, by how they ended."""
        return self._totals

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def idle(self) -> bool:
        """Whether no request runs or waits."""
        with self._lock:
            return not self._running and not self._waiting

    def refuse(self, error: TpiedgeError) -> NoReturn:
        """Counts a request that the caller does not accept, and raises `error`."""
        with self._lock:
            self._count(refused=1)
        raise error

    def submit(self, request: GenerationRequest) -> PendingAnswer:
        """Accepts a request. Raises QueueFull, or the error that `close` was given."""
        answering = PendingAnswer(request, self._cancelled)
        with self._lock:
            if self._closed is not None:
                self._count(refused=1)
                raise self._closed.with_traceback(None)  # or each refusal would lengthen its traceback
            if len(self._waiting) >= self._limit:
                self._count(refused=1)
                raise QueueFull(f"{self._limit} requests are waiting already: try again later")
            self._waiting.append(answering)
        self._on_submit()
        return answering

    def start(self, ask: Callable[[GenerationRequest], None]) -> bool:
        """Starts the next request: hands it to `ask`, which sends it to rank 0 and must neither block nor call back.

        Returns False if as many run as may, or none waits. A request for which `ask` raises ProtocolError ends there.
        """
        with self._lock:  # held while asking, so that no cancellation overtakes the request
            if len(self._running) >= self._parallel or not self._waiting:
                return False
            starting = self._waiting.popleft()
            self._running[starting.request.id] = starting
            try:
                ask(starting.request)
            except ProtocolError as error:
                del self._running[starting.request.id]
                self._count_failed([starting])
                starting.put(UserError(f"the request cannot be served: {error}"))
        return True

    def tell(self, message: Message) -> None:
        """Passes on a message of rank 0 about a running request."""
        name = getattr(message, "request", None)
        with self._lock:
            running = self._running.get(name) if isinstance(name, str) else None
            if running is None:
                return
            match message:
                case Token():
                    self._count(tokens=1)
                    running.put(message)
                case PromptScores():
                    running.put(message)
                case Finished():
                    del self._running[message.request]
                    self._count_finished(message, running)
                    running.put(message)
                case Failed(kind=kind, message=text):
                    del self._running[message.request]
                    self._count_failed([running])
                    running.put((UserError if kind == "UserError" else InternalError)(text))

    def fail_running(self, error: TpiedgeError) -> None:
        """Ends all running requests with `error`."""
        with self._lock:
            failed = [*self._running.values()]
            self._running.clear()
            self._count_failed(failed)
        for answering in failed:
            answering.put(error)

    def fail_all(self, error: TpiedgeError) -> None:
        """Ends all requests, those that run and those that wait, with `error`."""
        with self._lock:
            failed = [*self._running.values(), *self._waiting]
            self._running.clear()
            self._waiting.clear()
            self._count_failed(failed)
        for answering in failed:
            answering.put(error)

    def close(self, error: TpiedgeError) -> None:
        """Accepts no more requests: `submit` raises `error`. Accepted ones may still be served."""
        with self._lock:
            self._closed = error

    def _cancelled(self, answering: PendingAnswer) -> None:
        with self._lock:
            if self._running.get(answering.request.id) is answering:
                # It ends with rank 0's Finished, or with the loss of rank 0.
                self._on_cancel(answering.request.id)
                return
            if answering not in self._waiting:
                return
            self._waiting.remove(answering)
            self._count(cancelled=1)
        answering.put(Cancelled(f"request {answering.request.id} was cancelled before it began"))

    def _count_finished(self, message: Finished, answering: PendingAnswer) -> None:
        cancelled = int(message.reason == "cancel" and not answering.whole)
        self._count(
            finished=1 - cancelled,
            cancelled=cancelled,
            prompt_tokens=message.prompt_tokens,
            cached_tokens=message.cached_tokens,
        )

    def _count_failed(self, failed: Sequence[PendingAnswer]) -> None:
        """A request whose caller has the whole answer counts as finished, even if its end fails."""
        whole = sum(answering.whole for answering in failed)
        self._count(failed=len(failed) - whole, finished=whole)

    def _count(self, **more: int) -> None:
        """Adds to the totals, under the lock. They are replaced as a whole, so readers need no lock."""
        counted = asdict(self._totals)
        self._totals = Totals(**{name: count + more.get(name, 0) for name, count in counted.items()})
