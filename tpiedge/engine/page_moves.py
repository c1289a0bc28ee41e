"""Moves KV pages between a node's memory and its disk, and between the disks of nodes, as rank 0 orders.

1. Only an order's jobs touch its pages until all nodes have answered. A node answers once none of them waits or runs.
2. A page that cannot be written or read counts as absent. It never fails a step.
3. Each node leaves its own KV heads of a page in one file. A head has the KV head of `group_size` query heads
   (`model/config.py`) in each layer that keeps keys.
4. Heads that a machine lacks after a change of plan travel by rank 0, between the last step and the first one.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from tpiedge.collectives.communicator import Tag
from tpiedge.engine.forward import Engine
from tpiedge.errors import Misconduct, ProtocolError
from tpiedge.kernels.kv_pages import PageLayout
from tpiedge.kv.store import PageStore
from tpiedge.memory.disk import DiskQueue
from tpiedge.pack.layout import ALIGN
from tpiedge.pack.share import Share, kv_share
from tpiedge.units import MIB
from tpiedge.wire.control import KVSnapshot
from tpiedge.wire.data import PageOrder, PageOrders
from tpiedge.wire.fields import NAME_BYTES, Moves


@dataclass(frozen=True)
class PageDisk:
    """A machine's disk for pages. `told` gets a line when a page cannot be written. Parked pages take `usual_bytes` at
    most, and `halt_bytes` for a change of plan."""

    queue: DiskQueue
    parked: PageStore
    kept: PageStore | None
    told: Callable[[str], None]
    usual_bytes: int
    halt_bytes: int

    @property
    def stores(self) -> tuple[PageStore, ...]:
        return (self.parked,) if self.kept is None else (self.parked, self.kept)


@dataclass(eq=False)
class _Order:
    """An order that a node obeys. Jobs change `good` and `ended`, in any order."""

    order: PageOrder
    names: Sequence[bytes]
    begun: float
    ended: float
    good: list[bool]
    jobs: list[futures.Future[int]] = field(default_factory=list)

    def answer(self) -> tuple[float, float]:
        """Returns (how many pages from the start are done, seconds), or (-1, seconds so far) while jobs wait or run."""
        if not all(job.done() for job in self.jobs):
            return -1.0, time.perf_counter() - self.begun
        for job in self.jobs:
            job.result()  # only a bug raises an error here
        return float([*self.good, False].index(False)), self.ended - self.begun


class PageMoves:
    """One node's moves. Without `disk`, the node leaves and brings no page. `progress` gets the bytes that travelled
    between nodes so far. Close `disk` before the memory of `engine`."""

    def __init__(
        self,
        engine: Engine,
        attention: Share,
        disk: PageDisk | None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._cache, self._weights, self._communicator = engine.cache, engine.weights, engine.communicator
        self._disk, self._progress = disk, progress
        config = engine.config
        nbytes = self._cache.extents.shape[2]
        sizes = [one.attention.group_size for one in config.layers if one.attention.keys_of is None]
        kept = list(zip(self._cache.kept, sizes, strict=True))
        #: The shape of a head in a page: extents, bytes.
        self._section = sum(layout.head_bytes for layout, _ in kept) // nbytes, nbytes
        #: The places of each own head's extents in a page.
        self._places: dict[int, NDArray[np.int64]] = {}
        for head in kv_share(attention, config.group_size):
            own = (
                (layout, head * config.group_size // size - attention.start // size) for layout, size in kept
            )
            self._places[head] = np.concatenate([_places(layout, kv, nbytes) for layout, kv in own])
        self._orders: dict[int, _Order] = {}
        self._moved_bytes = 0
        self._warned = False

    def __contains__(self, name: bytes) -> bool:
        """Whether this node has a file of the page. Does no I/O."""
        return self._disk is not None and any(name in store for store in self._disk.stores)

    @property
    def stored(self) -> bool:
        """Whether this node has a disk for pages."""
        return self._disk is not None

    def handle(self, message: PageOrders) -> Sequence[tuple[int, int, float]]:
        """Obeys rank 0's message. Every rank calls it. Returns (order, pages done or -1, seconds) on rank 0 for each
        order that was `asked`: the least and the most of all ranks. Raises PeerLost, ProtocolError."""
        answers = self._answers(message)
        for order in message.orders:
            self._obey(order)
        self._carry(message.names, message.gathered, message.step, up=True)
        disk = self._disk
        if disk is not None and message.room:
            disk.parked.limit(disk.halt_bytes if message.room == "halt" else disk.usual_bytes)
        if disk is not None and message.used:
            disk.queue.submit("leave", 0, partial(_use, disk, _names(message.used)))
        return answers

    def scatter(self, snapshot: KVSnapshot | None) -> None:
        """Copies heads of parked pages to the nodes that lack them. Every rank calls this before the first step."""
        if snapshot is not None:
            self._carry(snapshot.names, snapshot.scattered, 0, up=False)
        elif self._disk is not None:  # what an earlier halt parked beyond this stays for a while
            self._disk.parked.limit_bytes = self._disk.usual_bytes

    def wait(self, limit_s: float) -> None:
        """Waits for this node's jobs, at most `limit_s`."""
        futures.wait([job for one in self._orders.values() for job in one.jobs], limit_s)

    def _answers(self, message: PageOrders) -> Sequence[tuple[int, int, float]]:
        asked = message.asked
        if not asked:
            return ()
        if not self._orders.keys() >= {*asked}:
            raise ProtocolError("node 0 asks for orders of pages that it did not give")
        self._orders = {number: self._orders[number] for number in asked}
        answers = np.array([[one.answer() for one in self._orders.values()]], np.float32)
        count = len(self._orders)
        group, mine = self._communicator, torch.from_numpy(answers.reshape(1, 2 * count))
        for rank in range(1, group.size):
            said = group.send_up(mine, rank, Tag(message.step, 0, 0))
            if said is None:
                continue
            its = said.numpy().reshape(1, count, 2)
            if not ((its[..., 0] >= -1).all() and (its[..., 1] >= 0).all()):
                raise Misconduct(rank, f"node {rank} answers for pages with impossible numbers")
            answers[..., 0] = np.minimum(answers[..., 0], its[..., 0])
            answers[..., 1] = np.maximum(answers[..., 1], its[..., 1])
        return [
            (number, int(good), float(seconds))
            for number, (good, seconds) in zip(self._orders, answers[0].tolist(), strict=True)
        ]

    def _obey(self, order: PageOrder) -> None:
        names = _names(order.names)
        if len(names) != len(order.pages) or any(page >= self._cache.pages for page in order.pages):
            raise ProtocolError("node 0 orders moves of pages that do not exist, or without their names")
        now, disk = time.perf_counter(), self._disk
        one = self._orders[order.number] = _Order(order, names, now, now, [disk is not None] * len(names))
        if disk is None:
            return
        if order.kind == "bring":
            self._cache.hold(order.pages)
            self._weights.make_room(self._cache.held_bytes)
        move = self._leave if order.kind == "leave" else self._bring
        one.jobs = [
            disk.queue.submit(order.kind, self._cache.page_bytes, partial(move, disk, one, at))
            for at in range(len(names))
        ]

    def _leave(self, disk: PageDisk, one: _Order, at: int) -> int:
        page, name = one.order.pages[at], one.names[at]
        store = disk.stores[-1] if one.order.kept else disk.parked
        moved, one.good[at] = 0, all(one.good[:at])
        if one.good[at] and not store.has(name, self._places):
            sections = {head: self._cache.extents[page, places] for head, places in self._places.items()}
            one.good[at], moved = self._write(disk, store, name, sections), self._cache.page_bytes
            one.ended = time.perf_counter()
        return moved

    def _bring(self, disk: PageDisk, one: _Order, at: int) -> int:
        page, name = one.order.pages[at], one.names[at]
        block = np.empty(self._section, np.uint8)
        one.good[at] = all(one.good[:at])  # pages after the first missing one are of no use
        for head, places in self._places.items():
            one.good[at] = one.good[at] and _read(disk, name, head, block)
            if one.good[at]:
                self._cache.extents[page, places] = block
        one.ended = time.perf_counter()
        return self._cache.page_bytes if one.good[at] else 0

    def _carry(self, packed: bytes, moves: Moves, step: int, *, up: bool) -> None:
        """Copies each of `moves` of each page to rank 0's disk (`up`) or from it."""
        group, extents = self._communicator, self._section[0]
        self._check_moves(moves)
        rows = max(1, MIB // self._section[1])
        firsts = range(0, extents, rows)
        forth, back = (group.send_up, group.send_down) if up else (group.send_down, group.send_up)
        written: futures.Future[int] | None = None
        for count, ((rank, head), name) in enumerate(itertools.product(moves, _names(packed))):
            source = rank if up else 0
            if group.rank not in (0, rank):
                continue
            section = np.empty(self._section, np.uint8)
            here = group.rank == source and self._disk is not None and _read(self._disk, name, head, section)
            first_tag = count * (1 + len(firsts))
            said = forth(torch.full((1, 1), float(here)), rank, Tag(step, 0, first_tag))
            if here if said is None else bool(said[0, 0]):
                for number, first in enumerate(firsts, first_tag + 1):
                    part = section[first : first + rows]
                    arrived = forth(torch.from_numpy(part.view(np.float32)), rank, Tag(step, 0, number))
                    if arrived is not None:
                        part[:] = arrived.numpy().view(np.uint8)
                    self._moved_bytes += part.nbytes
                    self._progress(self._moved_bytes)
                if group.rank != source and self._disk is not None:
                    written = self._save(self._disk, name, {head: section}, written)
            back(torch.zeros(1, 1), rank, Tag(step, 0, first_tag))  # so that only one head is under way
        if written is not None:
            written.result()

    def _save(
        self,
        disk: PageDisk,
        name: bytes,
        sections: Mapping[int, NDArray[np.uint8]],
        previous: futures.Future[int] | None,
    ) -> futures.Future[int]:
        """Starts to write heads of a parked page, once the previous write has ended."""
        if previous is not None:
            previous.result()
        nbytes = sum(section.nbytes for section in sections.values())
        return disk.queue.submit(
            "leave", nbytes, lambda: nbytes * self._write(disk, disk.parked, name, sections)
        )

    def _write(
        self, disk: PageDisk, store: PageStore, name: bytes, sections: Mapping[int, NDArray[np.uint8]]
    ) -> bool:
        try:
            store.leave(name, sections)
        except OSError as error:
            if not self._warned:
                disk.told(f"pages of the KV cache are not left in {store.folder}: {error.strerror}")
            self._warned = True
            return False
        return True

    def _check_moves(self, moves: Moves) -> None:
        for rank, head in moves:
            own = rank == self._communicator.rank
            if not 0 < rank < self._communicator.size or (own and head not in self._places):
                raise ProtocolError(f"the plan moves KV head {head} of node {rank}, which has none such")


def whole_cache_bytes(engine: Engine) -> int:
    """Returns the disk space of a full KV cache with the heads of all nodes."""
    cache, config = engine.cache, engine.config
    section = sum(layout.head_bytes for layout in cache.kept) + ALIGN  # for the seal
    return cache.pages * (config.num_heads // config.group_size + 1) * section


def _read(disk: PageDisk, name: bytes, head: int, into: NDArray[np.uint8]) -> bool:
    return any(store.bring(name, head, into) for store in disk.stores)


def _use(disk: PageDisk, names: Sequence[bytes]) -> int:
    for store in disk.stores:
        store.use(names)
    return 0


def _names(packed: bytes) -> list[bytes]:
    if len(packed) % NAME_BYTES:
        raise ProtocolError("names of pages are cut short")
    return [packed[start : start + NAME_BYTES] for start in range(0, len(packed), NAME_BYTES)]


def _places(layout: PageLayout, head: int, nbytes: int) -> NDArray[np.int64]:
    """Returns the places of a KV head's extents of `nbytes` in a page."""
    start = (layout.layer_offset + head * layout.head_bytes) // nbytes
    return np.arange(start, start + layout.head_bytes // nbytes)
