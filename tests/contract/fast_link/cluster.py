"""Ranks on real sockets whose sums pass through one native call each, and the outcomes of the calls."""

import ctypes
import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract import ranks
from tests.contract.networks import Network
from tpiedge.clock import MonotonicClock
from tpiedge.collectives.codec import decode_array, encode_array, header_of
from tpiedge.collectives.communicator import DeadlineLiveness, Tag
from tpiedge.collectives.group import Group
from tpiedge.transport import mesh, native_library
from tpiedge.wire.data import Partial, Reduced, StepPlan

WAIT_S = 10.0
SHAPE = (2, 33)
WIRES = ("f32", "bf16", "int8")
SIZES = (2, 3, 5)
# "pair": the mesh of two ranks over a hub and its spoke, without anything around them.
WAYS = [("pair", 2), *itertools.product(("star", "mesh"), SIZES)]

needs_native = pytest.mark.skipif(
    native_library.transport_library() is None, reason="native: the transport is not built"
)
every_way = pytest.mark.parametrize(("way", "size"), WAYS)


def part(rank: int, block: int = 0, shape: tuple[int, int] = SHAPE) -> torch.Tensor:
    return ranks.part(rank, *shape, block)


def total(size: int, block: int = 0) -> torch.Tensor:
    return ranks.total([part(rank, block) for rank in range(size)])


class Cluster:
    """All ranks on real sockets, each in a thread of its own, and what the fast calls of each came to."""

    def __init__(self, way: str, size: int, wire: str = "f32", timeout_s: float = WAIT_S) -> None:
        self.way, self.size, self.wire = way, size, wire
        self.network = Network("zeromq")
        self.endpoints: list[Any] = self._endpoints()
        #: Outcome, and whether anything was kept.
        self.calls: list[queue.SimpleQueue[tuple[int, bool]]] = [queue.SimpleQueue() for _ in range(size)]
        self._pool = ThreadPoolExecutor(size)
        self.ranks = [
            Group(
                endpoint,
                DeadlineLiveness(MonotonicClock(), timeout_s),
                epoch=1,
                rank=rank,
                size=size,
                linked=way != "star",
            )
            for rank, endpoint in enumerate(self.endpoints)
        ]
        self.plan("star" if way == "star" else "mesh", 1)

    def plan(self, collective: str, step: int, **changes: Any) -> None:
        fields = {"collective": collective, "bulk_collective": collective, "wire": self.wire, **changes}
        plan = StepPlan(1, step, (), 1, 1, **fields)
        self.together(lambda one: one.next_plan() if one.rank else one.announce(plan))

    def _endpoints(self) -> list[Any]:
        if self.way == "mesh":
            return list(self.network.mesh(self.size))
        return list(self.network.star(self.size))

    def meet(self) -> "Cluster":
        self.reduce(1000)
        for calls in self.calls:
            while not calls.empty():
                calls.get()
        return self

    def together(self, work: Callable[[Any], Any]) -> list[Any]:
        return [future.result(WAIT_S) for future in [self._pool.submit(work, one) for one in self.ranks]]

    def start(
        self, rank: int, block: int = 0, contributes: bool = True, own: torch.Tensor | None = None
    ) -> "Future[torch.Tensor]":
        own = part(rank, block) if own is None else own
        return self._pool.submit(self.ranks[rank].all_reduce, own, Tag(1, block, 0), contributes=contributes)

    def reduce(self, block: int = 0, step: int = 1, shape: tuple[int, int] = SHAPE) -> list[torch.Tensor]:
        return self.together(lambda one: one.all_reduce(part(one.rank, block, shape), Tag(step, block, 0)))

    def send(
        self,
        rank: int,
        to: int,
        block: int,
        *,
        epoch: int = 1,
        sender: int | None = None,
        flags: int = 0,
        given: torch.Tensor | None = None,
    ) -> None:
        array = (part(rank, block) if given is None else given).numpy()
        wire: Any = self.wire if array.dtype.kind == "f" else "i32"
        sender = rank if sender is None else sender
        header = header_of(wire, array.shape, array.itemsize)
        message: Any = Partial(epoch, 1, block, 0, 0, flags, sender, header)
        if self.way == "star" and rank == 0:
            message = Reduced(epoch, 1, block, 0, 0, flags, header)
        self.endpoints[rank].send(message, encode_array(wire, array), f"node-{to}", WAIT_S)

    def outcome(self, rank: int) -> int:
        return self.calls[rank].get(timeout=WAIT_S)[0]

    def outcomes(self, rank: int) -> list[int]:
        calls = self.calls[rank]
        return [calls.get()[0] for _ in range(calls.qsize())]

    def extend_timeout(self, rank: int) -> None:
        for socket in self.sockets(rank):
            socket.rcvtimeo = int(WAIT_S * 1000)

    def sockets(self, rank: int) -> list[Any]:
        return [end.socket for end in self.ends(rank)]

    def ends(self, rank: int) -> list[Any]:
        return list(self.endpoints[rank]._ends)

    def close(self) -> None:
        self.network.close()
        self._pool.shutdown()


class Ear:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._heard = threading.Semaphore(0)
        library = native_library.transport_library()
        assert library is not None
        addresses = list(library.zmq)
        at = native_library._FUNCTIONS.index("recv")
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, use_errno=True)
        plain = kind(addresses[at])

        def recv(message: int, socket: int, flags: int) -> int:
            result = int(plain(message, socket, flags))
            if result >= 64:  # not a route
                self._heard.release()
            return result

        self._recv = kind(recv)
        addresses[at] = ctypes.cast(self._recv, ctypes.c_void_p).value
        listening = library._replace(zmq=(ctypes.c_void_p * len(addresses))(*addresses))
        monkeypatch.setattr(mesh, "transport_library", lambda: listening)

    def forget(self) -> None:
        while self._heard.acquire(blocking=False):
            pass

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self._heard.acquire(timeout=WAIT_S)


def rounded(wire: Any, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return decode_array(wire, bytes(encode_array(wire, values)), values.shape)


def assert_total(results: list[torch.Tensor], block: int = 0) -> None:
    for result in results:
        assert torch.equal(result, total(len(results), block))
