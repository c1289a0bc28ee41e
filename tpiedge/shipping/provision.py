"""How a worker's agent gets the weights of its share: from the shard store, and what is missing from the master."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tpiedge.clock import Clock
from tpiedge.errors import Cancelled, DiskFull
from tpiedge.pack.held import HeldUnits
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, Share
from tpiedge.pack.store.copy import ShardCopy
from tpiedge.pack.store.store import ShardStore
from tpiedge.shipping.fetcher import fetch
from tpiedge.transport.framing import FILES
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.wire.epochs import Prepare, Stock
from tpiedge.wire.fields import rate_of

FILES_HUB = "files"

_REPORT_S = 0.3
_LOOK_S = 0.1
#: Of so many packs the master is told what is here.
_PACKS = 4
_log = logging.getLogger(__name__)

Report = Callable[[int, int, float], None]
"""(bytes done, bytes in all, bytes per second)"""


@dataclass(frozen=True)
class FilesMaster:
    """Where the master ships from, and who this worker is to it."""

    address: str
    master_key: str
    keys: CurveKeys
    name: str


class Provision:
    """One transfer at a time; another thread's waits for it. `local`: whole packs on this computer, whose blobs need no
    transfer."""

    def __init__(
        self, master: FilesMaster, store: ShardStore, clock: Clock, local: Sequence[Pack] = ()
    ) -> None:
        self._master = master
        self._store = store
        self._clock = clock
        self._local = local
        self._told: set[str] = set()
        self._turn = threading.Lock()  # the master takes one connection of this worker

    def __call__(
        self, order: Prepare, report: Report, cancelled: threading.Event, *, verify: bool
    ) -> ShardCopy:
        """Everything of the share on disk, in use until the caller closes it.

        `verify`: a node found damage, so what is there is compared with its checksums first. Raises as `fetch`.
        """
        share = NodeShare(Share(*order.attention), Share(*order.ffn))
        with self._turns(cancelled):
            if verify and self._store.has(order.pack):
                self._forget_damaged(order.pack, share)
            with self._spoke() as spoke:
                copy = fetch(
                    spoke,
                    self._store,
                    order.pack,
                    share,
                    _Rate(report, self._clock),
                    local=self._local,
                    stopped=cancelled.is_set,
                    clock=self._clock,
                )
        self._tell_of_strangers(copy)
        return copy

    def stock(self, order: Stock, cancelled: threading.Event) -> None:
        """Everything of the shares on disk, as far as that needs no eviction. Raises as `fetch`."""
        full: DiskFull | None = None
        with self._turns(cancelled), self._spoke() as spoke:
            for attention, ffn in order.shares:
                try:
                    fetch(
                        spoke,
                        self._store,
                        order.pack,
                        NodeShare(Share(*attention), Share(*ffn)),
                        local=self._local,
                        evict=False,
                        stopped=cancelled.is_set,
                        clock=self._clock,
                    ).close()
                except DiskFull as error:  # others may lack less
                    full = error
        if full is not None:
            raise full

    def held_bytes(self, pack: str) -> int:
        """How much of the pack's weights is on this disk. Raises as ShardStore."""
        if not self._store.has(pack):
            return 0
        with self._store.open(pack) as copy:
            return copy.held_bytes

    def held(self) -> Mapping[str, HeldUnits]:
        """The units that are here of the packs used last. Waits for nobody."""
        return self._store.held_units(_PACKS)

    @contextlib.contextmanager
    def _turns(self, cancelled: threading.Event) -> Iterator[None]:
        """Waits for the transfer under way, which was cancelled. Raises Cancelled."""
        while not self._turn.acquire(timeout=_LOOK_S):
            if cancelled.is_set():
                raise Cancelled("it was cancelled before it began")
        try:
            yield
        finally:
            self._turn.release()

    def _spoke(self) -> ZmqSpoke:
        master = self._master
        return ZmqSpoke(
            address=master.address,
            server_key=master.master_key,
            keys=master.keys,
            name=master.name,
            hub_name=FILES_HUB,
            plane=FILES,
        )

    def _tell_of_strangers(self, copy: ShardCopy) -> None:
        """Once per pack: a folder that the user named in vain."""
        if copy.id in self._told:
            return
        self._told.add(copy.id)
        for pack in self._local:
            if not copy.overlaps(pack):
                _log.warning(
                    "%s is not the model that the master serves (no layer is the same): the weights come from the "
                    "master",
                    pack.path,
                )

    def _forget_damaged(self, identity: str, share: NodeShare) -> None:
        copy = self._store.open(identity)
        try:
            copy.forget(copy.verify(share, fast=True))
        finally:
            copy.close()


class _Rate:
    """Turns bytes done into reports with a rate, a few times a second."""

    def __init__(self, report: Report, clock: Clock) -> None:
        self._report = report
        self._clock = clock
        self._started = clock.now()
        self._first: int | None = None
        self._due = self._started

    def __call__(self, done: int, total: int) -> None:
        now = self._clock.now()
        if self._first is None:
            self._first = done
        if now < self._due and done < total:
            return
        self._due = now + _REPORT_S
        self._report(done, total, rate_of(done - self._first, max(now - self._started, 1e-3)))
