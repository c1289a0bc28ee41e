"""Fetches what other plans than the present one need of this machine, in a thread of its own, while nobody is busy."""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from tpiedge.clock import Clock
from tpiedge.errors import Cancelled, InternalError, ResourceError, TpiedgeError
from tpiedge.pack.held import HeldUnits
from tpiedge.sanitise import sanitised_line
from tpiedge.wire.epochs import Stock, Stocked
from tpiedge.worker.preparation import NO_THREAD

_log = logging.getLogger(__name__)

_END_S: Final = 5.0
#: After a failure.
_AGAIN_S: Final = 60.0


class Stockroom(Protocol):
    """This machine's disk. Methods raise TpiedgeError."""

    def stock(self, order: Stock, cancelled: threading.Event) -> None:
        """Fetches what is missing of the shares, and evicts nothing for it; blocks until it is here.

        Raises Cancelled once `cancelled` is set; what has arrived is kept.
        """
        ...

    def held_bytes(self, pack: str) -> int:
        """How much of the pack's weights is here."""
        ...

    def held(self) -> Mapping[str, HeldUnits]:
        """Which units are here, of each pack that was used lately. Does not wait, and raises nothing."""
        ...


@dataclass
class _Run:
    """Of the order of that number. `ended` is set once `error` or `held_bytes` is."""

    number: int
    cancelled: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    held_bytes: int = 0
    error: TpiedgeError | None = None


class Stocking:
    """For one thread; only `close` blocks."""

    def __init__(self, room: Stockroom, clock: Clock) -> None:
        self._room = room
        self._clock = clock
        self._order: Stock | None = None
        self._due = 0.0
        self._run: _Run | None = None
        self._thread: threading.Thread | None = None
        self._failed = ""

    def take(self, order: Stock) -> None:
        """The order takes the place of the one before."""
        self.pause()
        self._order, self._due, self._failed = order, self._clock.now(), ""

    def pause(self) -> None:
        """Stops fetching until the next `go_on`."""
        if self._run is not None:
            self._run.cancelled.set()

    def go_on(self) -> None:
        """Nobody is busy: fetches what is missing, if anything is."""
        if self._order is not None and self._run is None and self._clock.now() >= self._due:
            run = self._run = _Run(self._order.number)
            thread = threading.Thread(
                target=self._fetched, args=(self._order, run), name="stock", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the machine has no thread left
                run.error = ResourceError(NO_THREAD)
                run.ended.set()
            else:
                self._thread = thread

    def finished(self) -> Stocked | None:
        """What came of the order since the last call, if it came to an end."""
        run = self._run
        if run is None or not run.ended.is_set():
            return None
        self._run = None
        if run.cancelled.is_set() or isinstance(run.error, Cancelled):
            return None
        if run.error is None:
            self._order = None
            return Stocked(0, run.number, run.held_bytes, True, "")
        self._due = self._clock.now() + _AGAIN_S
        return self._incomplete(sanitised_line(run.error), run)

    def close(self) -> None:
        """Ends fetching; blocks up to _END_S for the thread. Idempotent."""
        self._order = None
        self.pause()
        if self._thread is not None:
            self._thread.join(_END_S)

    def _incomplete(self, why: str, run: _Run) -> Stocked | None:
        """What the master is to know of a failure, once; it is tried again."""
        if why == self._failed:
            return None
        self._failed = why
        _log.warning("what other plans need is not fetched now: %s", why)
        return Stocked(0, run.number, run.held_bytes, False, why)

    def _fetched(self, order: Stock, run: _Run) -> None:
        try:
            try:
                self._room.stock(order, run.cancelled)
            finally:
                run.held_bytes = self._room.held_bytes(order.pack)
        except TpiedgeError as error:
            run.error = error
        except Exception as error:
            run.error = InternalError(f"{type(error).__name__}: {error}")
        finally:
            run.ended.set()
