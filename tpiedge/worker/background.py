"""Runs an agent's slow work in threads: fetches and prefetches shards, and probes the path to the master."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from tpiedge.clock import Clock
from tpiedge.errors import PeerError, ResourceError, TpiedgeError
from tpiedge.sanitise import sanitised_line
from tpiedge.shipping.fetcher import Provision
from tpiedge.wire.epochs import Prefetch, Prefetched

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Background(Generic[_T]):
    """Runs pieces of work in threads, one piece at a time. All calls must come from one thread. Only `close` blocks.
    `drop` gets the results of cancelled work."""

    def __init__(self, name: str, drop: Callable[[_T], None] = lambda _result: None) -> None:
        self._name = name
        self._drop = drop
        self._outcome: Future[_T | TpiedgeError] | None = None
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether no work runs and no outcome waits for `pop_result`."""
        return self._outcome is None and (self._thread is None or not self._thread.is_alive())

    def start(self, work: Callable[[threading.Event], _T]) -> None:
        """Cancels the previous work, then runs `work(cancelled)`. When `cancelled` is set, `work` must end soon."""
        self.cancel()
        cancelled, before = self._cancelled, self._thread
        outcome: Future[_T | TpiedgeError] = Future()

        def run() -> None:
            if before is not None:  # it may hold the connection to the master, or a lock
                before.join()
            if cancelled.is_set():
                return
            try:
                outcome.set_result(work(cancelled))
            except TpiedgeError as error:
                outcome.set_result(error)
            except Exception as error:
                outcome.set_result(PeerError(f"{type(error).__name__}: {error}"))

        self._outcome, thread = outcome, threading.Thread(target=run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            shortage = "cannot start a thread: is this machine short of memory or of threads?"
            outcome.set_result(ResourceError(shortage))
        else:
            self._thread = thread

    def pop_result(self) -> _T | TpiedgeError | None:
        """Returns the outcome of ended work, once; else None."""
        outcome = self._outcome
        if outcome is None or not outcome.done():
            return None
        self._outcome = None
        return outcome.result()

    def cancel(self) -> None:
        """Cancels the work; `drop` gets its result. Idempotent."""
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            self._cancelled.set()
            self._cancelled = threading.Event()
            outcome.add_done_callback(self._discard)

    def close(self) -> None:
        """Cancels the work. Waits up to 5 s for its thread. Idempotent."""
        self.cancel()
        if self._thread is not None:
            self._thread.join(5.0)

    def _discard(self, outcome: "Future[_T | TpiedgeError]") -> None:
        result = outcome.result()
        if not isinstance(result, TpiedgeError):
            self._drop(result)


class Prefetcher:
    """Fetches the shards needed if another machine is lost. Only one thread may use it."""

    def __init__(self, weights: Provision, clock: Clock) -> None:
        self._weights = weights
        self._clock = clock
        self._work: Background[Prefetched] = Background("prefetch")
        self._order: Prefetch | None = None
        self._due = 0.0
        self._failed = ""

    def order(self, order: Prefetch) -> None:
        self.pause()
        self._order, self._due, self._failed = order, self._clock.now(), ""

    def pause(self) -> None:
        """Stops fetching. Keeps arrived data."""
        self._work.cancel()

    def step(self, *, at_rest: bool) -> Prefetched | None:
        """Fetches missing shards while `at_rest`, else pauses. Returns a report if all shards have just arrived or a
        new error occurred, else None."""
        order = self._order
        if not at_rest:
            self.pause()
        elif order is not None and self._work.idle and self._clock.now() >= self._due:
            self._work.start(lambda cancelled: self._fetch(order, cancelled))
        found = self._work.pop_result()
        if found is None or order is None:
            return None
        if isinstance(found, TpiedgeError):
            found = Prefetched(0, order.number, 0, False, sanitised_line(found))
        if found.complete:
            self._order = None
            return found
        self._due = self._clock.now() + 60.0
        if found.why == self._failed:
            return None
        self._failed = found.why
        _log.warning("prefetch for other plans failed for now: %s", found.why)
        return found

    def _fetch(self, order: Prefetch, cancelled: threading.Event) -> Prefetched:
        why = ""
        try:
            self._weights.prefetch(order, cancelled)
        except TpiedgeError as error:
            why = sanitised_line(error)
        return Prefetched(0, order.number, self._weights.held_bytes(order.pack), not why, why)

    def close(self) -> None:
        self._work.close()
