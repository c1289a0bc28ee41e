"""Nodes of one epoch in one process, over real sockets, with a master that only hands their messages on."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from tests.contract.networks import Network
from tests.unit.wire.golden import SHARE
from tpiedge.clock import MonotonicClock
from tpiedge.launch.bootstrap import NodeBootstrap, Timing
from tpiedge.master.epoch import Epoch, EpochEvent
from tpiedge.node.control_link import ClusterLiveness
from tpiedge.node.data_plane import DataPlane, join_data_plane
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.control import Assign, Connect, Hello, Listening
from tpiedge.wire.fields import ALL_PINNED, CollectiveChoice, Message

EPOCH = 4
WAIT_S = 20.0


class Joining:
    """`size` nodes join their tensor plane, each in a thread of its own. `tamper(listening)` may change what a node
    says of where it listens before the master hears it; `before[rank]` is set once rank may learn where to connect."""

    def __init__(
        self,
        size: int,
        collective: CollectiveChoice = "auto",
        tamper: Callable[[Listening], Listening] = lambda said: said,
        host: str = "127.0.0.1",
    ) -> None:
        self.size, self.collective, self._tamper, self._host = size, collective, tamper, host
        self.clock = MonotonicClock()
        self.alive = [ClusterLiveness(self.clock, timeout_s=60.0, stall_s=60.0) for _ in range(size)]
        self.events: list[EpochEvent] = []
        self.connects: list[queue.Queue[Connect]] = [queue.Queue() for _ in range(size)]
        self.before = [threading.Event() for _ in range(size)]
        for event in self.before:
            event.set()
        self.planes: dict[int, DataPlane] = {}
        self._keys = [CurveKeys.generate() for _ in range(size)]
        self._lock = threading.Lock()
        self._resources = [ExitStack() for _ in range(size)]
        timing = Timing(timeout_s=60.0, start_s=60.0)
        self._epoch = Epoch(EPOCH, self.clock, size, timing, self.part, self._post, self.events.append)

    def __enter__(self) -> "Joining":
        for rank in range(self.size):
            self._epoch.handle(rank, Hello(0, rank))
        return self

    def __exit__(self, *_: object) -> None:
        for resources in self._resources:
            resources.close()

    def part(self, rank: int) -> Assign:
        keys = tuple((peer, keys.public) for peer, keys in enumerate(self._keys))
        nodes = tuple(range(self.size))
        return Assign(EPOCH, rank, nodes, SHARE, "f32", 1, 1, 1, 1, 0, keys, ALL_PINNED, self.collective)

    def join(self, rank: int) -> DataPlane:
        keys = self._keys[rank]
        bootstrap = NodeBootstrap(
            rank=rank,
            epoch=EPOCH,
            control_address=f"tcp://{self._host}:1",
            master_key=keys.public,
            keys=keys,
            timing=Timing(1.0, 0.1),
            data_address=f"tcp://{self._host}:*",
        )
        plane = join_data_plane(
            self.part(rank),
            bootstrap,
            self.alive[rank],
            self.clock,
            self._listening,
            lambda: self._connect(rank),
            self._resources[rank],
        )
        self.planes[rank] = plane
        return plane

    def close(self, rank: int) -> None:
        self._resources[rank].close()

    def all(self, work: Callable[[int], Any] | None = None) -> list[Any]:
        """`work(rank)`, or else joining, on all ranks at once: results and errors by rank."""
        return outcomes(work or self.join, range(self.size))

    def _connect(self, rank: int) -> Connect:
        assert self.before[rank].wait(WAIT_S)
        return self.connects[rank].get(timeout=WAIT_S)

    def _listening(self, said: Message) -> None:
        assert isinstance(said, Listening)
        with self._lock:
            self._epoch.handle(said.rank, self._tamper(said))

    def _post(self, message: Message, rank: int) -> None:
        if isinstance(message, Connect):
            self.connects[rank].put(message)


class Linked:
    """The endpoints of `size` nodes that are all linked with each other, and what each knows of the others' lives."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.clock = MonotonicClock()
        self.alive = [ClusterLiveness(self.clock, timeout_s=60.0, stall_s=60.0) for _ in range(size)]
        self._network = Network("zeromq")
        self.endpoints = self._network.mesh(size)

    def __enter__(self) -> "Linked":
        return self

    def __exit__(self, *_: object) -> None:
        self._network.close()

    def lose(self, rank: int, cause: str = "the test said so") -> None:
        for alive in self.alive:
            alive.mark_lost(rank, cause)

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        return outcomes(work, range(self.size))


def outcomes(work: Callable[[int], Any], ranks: Any) -> list[Any]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        futures: list[Future[Any]] = [pool.submit(work, rank) for rank in ranks]
    return [future.exception() or future.result() for future in futures]
