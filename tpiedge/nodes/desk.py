"""The requests of a serving cluster: which one runs, which ones wait, and how each of them ends.

Laws:
1. A request that was accepted ends exactly once: with Finished, or with an error that says why.
2. Requests start in the order in which they were accepted, one at a time.
3. What a node says about a request that is not the running one is dropped.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import NoReturn

from tpiedge.errors import Cancelled, InternalError, TpiedgeError, UserError
from tpiedge.nodes.status import Totals
from tpiedge.wire.control import Failed, Finished, PromptScores, Token
from tpiedge.wire.messages import Message
from tpiedge.wire.requests import GenerationRequest

__all__ = ["Answering", "Desk", "QueueFull"]


_Event = Token | PromptScores | Finished | TpiedgeError


class QueueFull(TpiedgeError):
    """As many requests wait as the master admits."""


class Answering:
    """One accepted request, for the thread that asked. Made by `Desk.submit`."""

    def __init__(self, request: GenerationRequest, cancel: Callable[["Answering"], None]) -> None:
        self.request = request
        self._cancel = cancel
        self._events: queue.Queue[_Event] = queue.Queue()

    def events(self) -> Iterator[Token | PromptScores | Finished]:
        """What comes back, up to Finished. Raises the error that ended the request. Closing it early cancels."""
        ended = False
        try:
            while not ended:
                event = self._events.get()  # bounded by the desk's first law
                ended = isinstance(event, Finished | TpiedgeError)
                if isinstance(event, TpiedgeError):
                    raise event
                yield event
        finally:
            if not ended:
                self.cancel()

    def cancel(self) -> None:
        """End the request early; from any thread, again and again."""
        self._cancel(self)

    def put(self, event: _Event) -> None:
        """For the desk alone."""
        self._events.put(event)


class Desk:
    """Thread-safe. `on_cancel(id)` is called for the running request when it is cancelled."""

    def __init__(self, limit: int, on_cancel: Callable[[str], None], on_submit: Callable[[], None]) -> None:
        self._limit = limit
        self._on_cancel = on_cancel
        self._on_submit = on_submit
        self._lock = threading.Lock()
        self._waiting: deque[Answering] = deque()
        self._running: Answering | None = None
        self._closed: TpiedgeError | None = None
        self._totals = Totals()

    @property
    def totals(self) -> Totals:
        """What has become of the requests so far."""
        return self._totals

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> bool:
        return self._running is not None

    @property
    def idle(self) -> bool:
        """Whether no request runs or waits."""
        with self._lock:
            return self._running is None and not self._waiting

    def refuse(self, error: TpiedgeError) -> NoReturn:
        """Count a request that somebody else does not accept, and raise why."""
        with self._lock:
            self._count(refused=1)
        raise error

    def submit(self, request: GenerationRequest) -> Answering:
        """Accept a request. Raises QueueFull, or what `close` was given."""
        answering = Answering(request, self._cancelled)
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

    def next(self) -> GenerationRequest | None:
        """The request that runs from now on; None where one runs already or none waits."""
        with self._lock:
            if self._running is not None or not self._waiting:
                return None
            self._running = self._waiting.popleft()
            return self._running.request

    def tell(self, message: Message) -> None:
        """A message of rank 0 about the running request."""
        with self._lock:
            running = self._running
            if running is None or getattr(message, "request", None) != running.request.id:
                return
            match message:
                case Token():
                    self._count(tokens=1)
                    running.put(message)
                case PromptScores():
                    running.put(message)
                case Finished(reason=reason, prompt_tokens=prompt_tokens):
                    self._running = None
                    cancelled = int(reason == "cancel")
                    self._count(finished=1 - cancelled, cancelled=cancelled, prompt_tokens=prompt_tokens)
                    running.put(message)
                case Failed(kind=kind, message=text):
                    self._running = None
                    self._count(failed=1)
                    running.put((UserError if kind == "UserError" else InternalError)(text))

    def fail_running(self, error: TpiedgeError) -> None:
        """The cluster broke under the running request."""
        with self._lock:
            running, self._running = self._running, None
            self._count(failed=int(running is not None))
        if running is not None:
            running.put(error)

    def fail_all(self, error: TpiedgeError) -> None:
        """No request can be served: neither the running one nor those that wait."""
        with self._lock:
            failed = [*([self._running] if self._running else []), *self._waiting]
            self._running = None
            self._waiting.clear()
            self._count(failed=len(failed))
        for answering in failed:
            answering.put(error)

    def close(self, error: TpiedgeError) -> None:
        """Accept nothing any more; those that are accepted may still be served."""
        with self._lock:
            self._closed = error

    def _cancelled(self, answering: Answering) -> None:
        with self._lock:
            if answering is self._running:
                # It ends with rank 0's Finished, or with the loss of rank 0.
                self._on_cancel(answering.request.id)
                return
            if answering not in self._waiting:
                return
            self._waiting.remove(answering)
            self._count(cancelled=1)
        answering.put(Cancelled(f"request {answering.request.id} was cancelled before it began"))

    def _count(self, **more: int) -> None:
        """Add to the totals. Under the lock; they are replaced, so that whoever reads them sees all of a moment."""
        counted = asdict(self._totals)
        self._totals = Totals(**{name: count + more.get(name, 0) for name, count in counted.items()})
