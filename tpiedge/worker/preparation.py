"""Fetches the weights of a worker's share for a coming epoch, in a thread of its own."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tpiedge.errors import PeerError, ResourceError, TpiedgeError
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.epochs import Prepare

NO_THREAD: Final = "cannot start a thread: is this machine short of memory or of threads?"

_FETCH_END_S: Final = 5.0


class Shards(Protocol):
    """The weights of a share on this machine's disk, held in use until `close`."""

    @property
    def path(self) -> Path: ...

    def close(self) -> None: ...


class FetchShards(Protocol):
    """Fetches the shards that a share needs to this machine; blocks until they are here."""

    def __call__(
        self,
        order: Prepare,
        report: Callable[[int, int, float], None],
        cancelled: threading.Event,
        *,
        verify: bool,
    ) -> Shards:
        """`report(bytes done, bytes in all, bytes per second)` is called on the way; `verify`: distrust the disk.

        Raises TpiedgeError, among them Cancelled once `cancelled` is set.
        """
        ...


@dataclass
class Preparation:
    """This worker's part of a coming epoch. `shards` is None until they are fetched."""

    order: Prepare
    keys: CurveKeys
    cancelled: threading.Event = field(default_factory=threading.Event)
    shards: Shards | None = None


class Preparations:
    """At most one preparation at a time. One thread calls the methods; the fetching thread calls
    `report(epoch, bytes done, in all, per second)`.
    """

    def __init__(self, fetch: FetchShards, report: Callable[[int, int, int, float], None]) -> None:
        self._fetch = fetch
        self._report = report
        self._current: Preparation | None = None
        self._results: queue.SimpleQueue[tuple[Preparation, Shards | TpiedgeError]] = queue.SimpleQueue()
        self._fetcher: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is prepared, and nothing waits to be launched."""
        return self._current is None

    def begin(self, order: Prepare, *, verify: bool) -> None:
        """Starts a preparation and cancels the one before. Does not block."""
        self.cancel()
        self._current = Preparation(order, CurveKeys.generate())
        fetcher = threading.Thread(
            target=self._run, args=(self._current, self._fetcher, verify), name="fetch", daemon=True
        )
        try:
            fetcher.start()
        except RuntimeError:  # the machine has no thread left, and may have one for the next attempt
            self._results.put((self._current, ResourceError(NO_THREAD)))
        else:
            self._fetcher = fetcher

    def finished(self) -> Iterator[tuple[Preparation, TpiedgeError | None]]:
        """The preparations that ended since the last call, each with its error or None. Does not wait."""
        while not self._results.empty():
            preparation, result = self._results.get()
            if preparation is not self._current:
                _discard(result)
            elif isinstance(result, TpiedgeError):
                self._current = None
                yield preparation, result
            else:
                preparation.shards = result
                yield preparation, None

    def claim(self, epoch: int) -> tuple[Preparation, Shards] | None:
        """Hands over the preparation of `epoch`; the caller closes its shards. None if it is not prepared."""
        current = self._current
        if current is None or current.order.epoch != epoch or current.shards is None:
            return None
        self._current = None
        return current, current.shards

    def release(self, epoch: int) -> None:
        """Cancels the preparation if it is of `epoch`."""
        if self._current is not None and self._current.order.epoch == epoch:
            self.cancel()

    def cancel(self) -> None:
        """Cancels the preparation, if there is one. Idempotent."""
        if self._current is not None:
            self._current.cancelled.set()
            if self._current.shards is not None:
                self._current.shards.close()
            self._current = None

    def close(self) -> None:
        """Cancels, and blocks up to _FETCH_END_S for the thread. Idempotent."""
        self.cancel()
        if self._fetcher is not None:
            self._fetcher.join(_FETCH_END_S)
        while not self._results.empty():
            _discard(self._results.get()[1])

    def _run(self, preparation: Preparation, before: threading.Thread | None, verify: bool) -> None:
        """Waits for the cancelled fetch `before`, which may still hold the connection to the master and the lock."""
        if before is not None:
            before.join()
        self._results.put((preparation, self._fetched(preparation, verify)))

    def _fetched(self, preparation: Preparation, verify: bool) -> Shards | TpiedgeError:
        def report(done_bytes: int, total_bytes: int, bytes_per_s: float) -> None:
            if not preparation.cancelled.is_set():
                self._report(preparation.order.epoch, done_bytes, total_bytes, bytes_per_s)

        try:
            return self._fetch(preparation.order, report, preparation.cancelled, verify=verify)
        except TpiedgeError as error:
            return error
        except Exception as error:
            return PeerError(f"fetching failed: {type(error).__name__}: {error}")


def _discard(result: Shards | TpiedgeError) -> None:
    if not isinstance(result, TpiedgeError):
        result.close()
