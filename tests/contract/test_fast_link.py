"""The all-reduce in one native call, over ZeroMQ: the bits and the laws of Python's, whatever comes between."""

import ctypes
import dataclasses
import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.conftest import Network
from tpiedge.clock import MonotonicClock
from tpiedge.collectives import fast as fast_path
from tpiedge.collectives.codec import CODECS
from tpiedge.collectives.communicator import Tag
from tpiedge.collectives.group import Group
from tpiedge.collectives.liveness import DeadlineLiveness
from tpiedge.errors import Misconduct, PeerLost, ProtocolError
from tpiedge.transport import native_library, reducing
from tpiedge.transport.endpoint import EndpointClosed
from tpiedge.transport.reducing import Reducing
from tpiedge.transport.reduction import DONE
from tpiedge.wire.codec import encode
from tpiedge.wire.data import CANCEL, Partial, Reduced, StepPlan

WAIT_S = 10.0
SHAPE = (2, 33)
WIRES = ("f32", "bf16", "int8")
SIZES = (2, 3, 5)
# "pair": the mesh of two ranks over a hub and its spoke, without anything around them.
WAYS = [("pair", 2), *itertools.product(("star", "mesh"), SIZES)]

pytestmark = pytest.mark.skipif(native_library.native_library() is None, reason="not built")
every_way = pytest.mark.parametrize(("way", "size"), WAYS)


def part(rank: int, block: int = 0, shape: tuple[int, int] = SHAPE) -> torch.Tensor:
    """Of magnitudes so different that the order of summation shows."""
    generator = torch.Generator().manual_seed(100 * block + rank)
    return torch.randn(shape, generator=generator) * 10.0 ** (rank * 3 % 7)


def total(size: int, block: int = 0, shape: tuple[int, int] = SHAPE) -> torch.Tensor:
    summed = part(0, block, shape)
    for rank in range(1, size):
        summed = summed + part(rank, block, shape)
    return summed


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
        """Begin a step."""
        fields = {"collective": collective, "bulk_collective": collective, "wire": self.wire, **changes}
        plan = StepPlan(1, step, (), 1, 1, **fields)
        self.together(lambda one: one.next_plan() if one.rank else one.announce(plan))

    def _endpoints(self) -> list[Any]:
        if self.way == "mesh":
            return list(self.network.mesh(self.size))
        return [self.network.hub(), *(self.network.spoke(rank) for rank in range(1, self.size))]

    def meet(self) -> "Cluster":
        """Every link is made, and has nothing under way."""
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
        """A part, by hand."""
        codec: Any = CODECS[self.wire]  # type: ignore[index]
        array = (part(rank, block) if given is None else given).numpy()
        sender = rank if sender is None else sender
        header = codec.header(array.shape)
        message: Any = Partial(epoch, 1, block, 0, flags, sender, header)
        if self.way == "star" and rank == 0:
            message = Reduced(epoch, 1, block, 0, flags, header)
        self.endpoints[rank].send(message, (codec.encode(array),), f"node-{to}", WAIT_S)

    def outcome(self, rank: int) -> int:
        """What the next fast call of `rank` came to."""
        return self.calls[rank].get(timeout=WAIT_S)[0]

    def outcomes(self, rank: int) -> list[int]:
        """Of all so far."""
        calls = self.calls[rank]
        return [calls.get()[0] for _ in range(calls.qsize())]

    def patient(self, rank: int) -> None:
        """Have the fast calls of `rank` wait for as long as the test does."""
        for socket in self.sockets(rank):
            socket.rcvtimeo = int(WAIT_S * 1000)

    def sockets(self, rank: int) -> list[Any]:
        return [end._socket for end in self.ends(rank)]

    def ends(self, rank: int) -> list[Any]:
        endpoint = self.endpoints[rank]
        return list(endpoint._ends) if self.way == "mesh" else [endpoint]

    def end(self, rank: int, peer: int) -> Any:
        """Of `rank`, the hub or spoke with the link to `peer`."""
        return self.endpoints[rank]._end(f"node-{peer}") if self.way == "mesh" else self.endpoints[rank]

    def close(self) -> None:
        self.network.close()
        self._pool.shutdown()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []
    plain = Reducing._reduce

    def watched(self: Reducing, *arguments: Any) -> int:
        outcome = plain(self, *arguments)
        for one in made:
            for rank, endpoint in enumerate(one.endpoints):
                if endpoint._reducing is self:
                    one.calls[rank].put((outcome, self.keeps))
        return outcome

    def make_one(*arguments: Any) -> Cluster:
        made.append(Cluster(*arguments))
        return made[-1]

    monkeypatch.setattr(Reducing, "_reduce", watched)
    # On a busy machine some calls in a row may leave off for lack of time.
    monkeypatch.setattr(fast_path, "_MOST_LEFT_OFF", sys.maxsize)
    yield make_one
    for one in made:
        one.close()


class Ear:
    """Knows how many messages the native side has received, all ranks together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._heard = threading.Semaphore(0)
        library = native_library.native_library()
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
        listening = native_library.Library(library.dll, addresses)
        monkeypatch.setattr(reducing, "native_library", lambda: listening)

    def forget(self) -> None:
        """What was received so far."""
        while self._heard.acquire(blocking=False):
            pass

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self._heard.acquire(timeout=WAIT_S)


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Ear:
    return Ear(monkeypatch)


def assert_total(results: list[torch.Tensor], block: int = 0) -> None:
    for result in results:
        assert torch.equal(result, total(len(results), block))


@pytest.mark.parametrize("wire", WIRES)
@every_way
def test_the_steady_state_is_one_call_with_the_bits_of_python(
    make: Any, way: str, size: int, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for switch in ("1", "0"):
        monkeypatch.setenv("TPIEDGE_FAST_LINK", switch)
        cluster = make(way, size, wire)
        results.append([cluster.reduce(block) for block in range(30)])
        for rank in range(size):
            outcomes = cluster.outcomes(rank)
            assert outcomes.count(DONE) > 10 if switch == "1" else not outcomes
    for block, (fast, slow) in enumerate(zip(*results, strict=True)):
        for result in (*fast, *slow):
            assert torch.equal(result.view(torch.int32), fast[0].view(torch.int32))
        if wire == "f32":
            assert_total(fast, block)


def rounded(wire: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    codec: Any = CODECS[wire]  # type: ignore[index]
    decoded: np.ndarray[Any, Any] = codec.decode(bytes(codec.encode(values)), values.shape)
    return decoded


@pytest.mark.parametrize("switch", ["1", "0"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("size", SIZES)
def test_every_collective_rounds_the_parts_and_the_sum(
    make: Any, size: int, wire: str, switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPIEDGE_FAST_LINK", switch)
    cluster = make("mesh", size, wire)
    for step, way in enumerate(("star", "mesh", "two-shot"), 2):
        cluster.plan(way, step)
        for block in range(4):
            expected = rounded(wire, part(0, block).numpy())
            for rank in range(1, size):
                expected = expected + rounded(wire, part(rank, block).numpy())
            for result in cluster.reduce(block, step):
                assert np.array_equal(result.numpy(), rounded(wire, expected)), way
    assert (DONE in cluster.outcomes(0)) == (switch == "1")


@every_way
@pytest.mark.parametrize("wire", WIRES)
def test_the_bytes_are_counted_as_in_python(
    make: Any, way: str, size: int, wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for switch in ("1", "0"):
        monkeypatch.setenv("TPIEDGE_FAST_LINK", switch)
        cluster = make(way, size, wire)
        for block in range(5):
            cluster.reduce(block)
        counts.append([(one.bytes_sent, one.bytes_received) for one in cluster.endpoints])
        assert (cluster.outcomes(0) == []) == (switch == "0")
    assert counts[0] == counts[1]


@every_way
def test_what_a_hub_has_received_is_counted_per_connection(make: Any, way: str, size: int) -> None:
    """Otherwise it would end connections of which it believes that nobody receives what comes."""
    cluster = make(way, size).meet()
    hub = cluster.ends(0)[0]
    before = [peer.flow.taken for peer in hub._known.values()]
    for block in range(10):
        cluster.reduce(block)
    frame = 64 + CODECS["f32"].header(SHAPE).nbytes
    after = [peer.flow.taken for peer in hub._known.values()]
    assert [now - then for now, then in zip(after, before, strict=True)] == [10 * (frame + 42)] * (size - 1)


@every_way
@pytest.mark.parametrize("late", [0, 1])
def test_a_late_peer_is_waited_for_in_python(make: Any, way: str, size: int, late: int) -> None:
    cluster = make(way, size).meet()
    early = [rank for rank in range(size) if rank != late]
    futures = {rank: cluster.start(rank) for rank in early}
    # Whoever sends first has sent; the root of a star has not.
    for rank in early:
        leaf = 1 if way == "star" else size - 1
        assert cluster.outcome(rank) == (0 if way == "star" and rank == 0 else leaf)
    futures[late] = cluster.start(late)
    assert_total([futures[rank].result(WAIT_S) for rank in range(size)])
    for block in range(1, 5):
        assert_total(cluster.reduce(block), block)
    assert DONE in cluster.outcomes(0)


def ahead(cluster: Cluster, ear: Ear, then: Callable[[], None]) -> "Future[torch.Tensor]":
    """Rank 0 has the part of block 0 of all but rank 3, and of rank 1 what `then` sends, in the middle of its call."""
    cluster.patient(0)
    for rank in (1, 2):
        cluster.send(rank, 0, 0)
    then()
    waiting = cluster.start(0)
    ear.wait(3)
    cluster.send(3, 0, 0)
    return waiting


@pytest.mark.parametrize("way", ["star", "mesh"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_peer_that_is_a_block_ahead_is_heard_in_the_next_call(
    make: Any, ear: Ear, way: str, wire: str
) -> None:
    cluster = make(way, 4, wire)
    before = cluster.endpoints[0].bytes_received
    results = [ahead(cluster, ear, lambda: cluster.send(1, 0, 1)).result(WAIT_S)]
    assert cluster.calls[0].get(timeout=WAIT_S) == (DONE, True)
    frame = 64 + CODECS[wire].header(SHAPE).nbytes  # type: ignore[index]
    # Counted once, when it is used.
    assert cluster.endpoints[0].bytes_received - before == 3 * frame
    for rank in (2, 3):
        cluster.send(rank, 0, 1)
    results.append(cluster.start(0, 1).result(WAIT_S))
    assert cluster.calls[0].get(timeout=WAIT_S) == (DONE, False)
    assert cluster.endpoints[0].bytes_received - before == 6 * frame
    for block, result in enumerate(results):
        heard = [rounded(wire, part(rank, block).numpy()) for rank in range(4)]
        expected = rounded(wire, heard[0] + heard[1] + heard[2] + heard[3])
        assert np.array_equal(result.numpy().view(np.uint32), expected.view(np.uint32))


def test_what_came_ahead_and_is_something_else_is_pythons(make: Any, ear: Ear) -> None:
    """Of another epoch, here, which it drops."""
    cluster = make("mesh", 4)
    ahead(cluster, ear, lambda: cluster.send(1, 0, 1, epoch=0)).result(WAIT_S)
    assert cluster.calls[0].get(timeout=WAIT_S) == (DONE, True)
    for rank in (1, 2, 3):
        cluster.send(rank, 0, 1)
    assert torch.equal(cluster.start(0, 1).result(WAIT_S), total(4, 1))
    assert cluster.outcome(0) == 3
    assert cluster.ranks[0].dropped == 1


def test_what_came_ahead_is_received_first(make: Any, ear: Ear) -> None:
    cluster = make("mesh", 4)
    ahead(cluster, ear, lambda: cluster.send(1, 0, 1)).result(WAIT_S)
    cluster.send(1, 0, 2)
    received = [cluster.endpoints[0].recv(WAIT_S) for _ in range(2)]
    assert [one.message.block for one in received] == [1, 2]
    assert {one.sender for one in received} == {"node-1"}
    assert bytes(received[0].tensors[0]) == part(1, 1).numpy().tobytes()


def test_what_came_ahead_is_received_before_something_is_sent_step_by_step(make: Any, ear: Ear) -> None:
    cluster = make("mesh", 4)
    ahead(cluster, ear, lambda: cluster.send(1, 0, 1)).result(WAIT_S)
    waiting = cluster.start(0, 1, contributes=False)
    for rank in (2, 3):
        cluster.send(rank, 0, 1)
    assert torch.equal(waiting.result(WAIT_S), part(1, 1) + part(2, 1) + part(3, 1))


def test_another_shape_finds_what_came_ahead(make: Any, ear: Ear) -> None:
    cluster = make("mesh", 4)
    row = (1, 8)
    ahead(cluster, ear, lambda: cluster.send(1, 0, 1, given=part(1, 1, row))).result(WAIT_S)
    assert cluster.calls[0].get(timeout=WAIT_S) == (DONE, True)
    for rank in (2, 3):
        cluster.send(rank, 0, 1, given=part(rank, 1, row))
    result = cluster.start(0, 1, own=part(0, 1, row)).result(WAIT_S)
    assert torch.equal(result, total(4, 1, row))
    assert cluster.calls[0].get(timeout=WAIT_S) == (0, False)


def test_a_peer_that_was_ahead_and_is_revoked_is_not_heard(make: Any, ear: Ear) -> None:
    cluster = make("mesh", 4, "f32", 1.0)
    ahead(cluster, ear, lambda: cluster.send(1, 0, 1)).result(WAIT_S)
    hub = cluster.ends(0)[0]
    hub.admission.revoke("node-1")
    for rank in (2, 3):
        cluster.send(rank, 0, 1)
    with pytest.raises(PeerLost, match="node 1"):
        cluster.start(0, 1).result(WAIT_S)
    assert hub.counters.revoked == 1


def test_nobody_gets_far_ahead(make: Any, ear: Ear) -> None:
    """The native side keeps a few messages; how many are too many is Python's to say."""
    cluster = make("mesh", 4)
    cluster.patient(0)
    for rank in (1, 2):
        cluster.send(rank, 0, 0)
    for block in range(1, 40):
        cluster.send(1, 0, block)
    waiting = cluster.start(0)
    assert cluster.calls[0].get(timeout=WAIT_S) == (3, False)
    cluster.send(3, 0, 0)
    assert torch.equal(waiting.result(WAIT_S), total(4))
    assert cluster.ranks[0]._courier.inbox.holds


def test_an_early_message_is_held_and_found(make: Any) -> None:
    cluster = make("star", 3)
    for block in (1, 0):
        for rank in (1, 2):
            cluster.send(rank, 0, block)
    for block in (0, 1):
        assert torch.equal(cluster.start(0, block).result(WAIT_S), total(3, block))
    # While one is held, nothing is done in one call.
    assert cluster.outcomes(0) == [0]
    assert cluster.endpoints[0].bytes_received == 4 * (64 + 4 * SHAPE[0] * SHAPE[1])


@every_way
def test_shapes_in_turn(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    shapes = [(1, 33), (2, 33), (4, 7)]
    for block in range(24):
        shape = shapes[block % 3]
        for result in cluster.reduce(block, shape=shape):
            assert torch.equal(result, total(size, block, shape))
    # A peer that is ahead costs the others a call: its message is of another shape.
    assert DONE in cluster.outcomes(0)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_star_and_mesh_in_turn(make: Any, size: int) -> None:
    cluster = make("mesh", size)
    small, large = (1, 33), (3, 33)
    for step in range(2, 8):
        ways = ("star", "mesh") if step % 2 else ("mesh", "star")
        cluster.plan(ways[0], step, bulk_collective=ways[1], small_bytes=4 * 33)
        for block in range(4):
            shape = large if block % 2 else small
            for result in cluster.reduce(block, step, shape):
                assert torch.equal(result, total(size, block, shape))
    assert [one.counts for one in cluster.ranks] == [{"star": 12, "mesh": 12}] * size
    assert DONE in cluster.outcomes(0)


@every_way
def test_a_message_of_another_epoch_is_dropped(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    for rank, to in ((1, 0), (0, 1)):
        cluster.send(rank, to, 0, epoch=0)
    assert_total(cluster.reduce())
    assert [cluster.ranks[rank].dropped for rank in (0, 1)] == [1, 1]


@every_way
def test_who_speaks_for_another_is_named(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    cluster.send(1, 0, 0, sender=0)
    with pytest.raises(ProtocolError, match="node 1 speaks for another"):
        cluster.start(0).result(WAIT_S)


@every_way
def test_who_sends_another_shape_is_named(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    cluster.send(1, 0, 0, given=torch.zeros(1, 66))
    with pytest.raises(Misconduct, match=r"node 1 sent .* where .*f32"):
        cluster.start(0).result(WAIT_S)


@every_way
@pytest.mark.parametrize("rank", [0, 1])
def test_a_message_of_two_frames_is_malformed(make: Any, way: str, size: int, rank: int) -> None:
    cluster = make(way, size).meet()
    sender, receiver = cluster.end(1 - rank, rank), cluster.end(rank, 1 - rank)
    header = CODECS["f32"].header(SHAPE)
    message: Any = Partial(1, 1, 0, 0, 0, 1 - rank, header)
    if rank and way == "star":
        message = Reduced(1, 1, 0, 0, 0, header)
    route = [sender._routes["node-1"]] if rank else []
    sender._socket.send_multipart([*route, encode(message) + bytes(header.nbytes), b"", b"more"])
    with pytest.raises(Misconduct, match="more than one frame"):
        cluster.start(rank).result(WAIT_S)
    assert receiver.counters.malformed == 1
    assert receiver.recv(0.0) is None


@every_way
def test_a_peer_revoked_in_mid_run_is_not_heard(make: Any, way: str, size: int) -> None:
    cluster = make(way, size, "f32", 1.0).meet()
    waiting = cluster.start(0, 3)
    hub = cluster.ends(0)[0]
    hub.admission.revoke("node-1")
    for rank in range(1, size):
        cluster.send(rank, 0, 3)
    with pytest.raises(PeerLost, match="node 1"):
        waiting.result(WAIT_S)
    assert hub.counters.revoked == 1


@pytest.mark.parametrize("way", ["pair", "mesh"])
def test_a_list_that_changes_during_the_call_stops_it(make: Any, way: str) -> None:
    cluster = make(way, 2).meet()
    changes = cluster.ends(0)[0].admission.changes
    while cluster.outcomes(0) != [DONE]:
        cluster.reduce()
    waiting = cluster.start(0, 1)
    # The call may have begun or not: either way it must not take the message for good without a look at the list.
    changes.value += 1
    cluster.send(1, 0, 1)
    assert torch.equal(waiting.result(WAIT_S), total(2, 1))
    assert DONE not in cluster.outcomes(0)


@every_way
def test_a_connection_made_anew_ends_the_wait(make: Any, way: str, size: int) -> None:
    cluster = make(way, size).meet()
    spoke = cluster.end(1, 0)
    spoke._socket.disconnect(spoke.address)
    spoke._socket.connect(spoke.address)
    waiting = cluster.start(0, 1)
    deadline = time.monotonic() + WAIT_S
    # A socket works on its connections while somebody calls it.
    while not waiting.done() and time.monotonic() < deadline:
        cluster.endpoints[1].recv(0.01)
    with pytest.raises(PeerLost, match="made anew"):
        waiting.result(0)


@every_way
def test_a_peer_that_is_gone_is_lost(make: Any, way: str, size: int) -> None:
    cluster = make(way, size, "f32", 0.5).meet()
    cluster.endpoints[1].close()
    for rank in [rank for rank in range(size) if rank != 1]:
        expected = "node 0" if way == "star" and rank else "node 1"
        with pytest.raises(PeerLost, match=expected):
            cluster.start(rank, 1).result(WAIT_S)


@every_way
def test_a_cancel_reaches_all_after_the_same_block(make: Any, way: str, size: int) -> None:
    cluster = make(way, size)
    seen = []
    for block in range(3):
        if block == 1:
            cluster.ranks[0].request_cancel()
        assert_total(cluster.reduce(block), block)
        seen.append([one.cancelled for one in cluster.ranks])
    assert seen == [[False] * size, [True] * size, [True] * size]
    cluster.plan(cluster.ranks[0]._plan.collective, 2)
    assert not any(one.cancelled for one in cluster.ranks)


def test_a_cancel_that_came_ahead_is_heard(make: Any, ear: Ear) -> None:
    cluster = make("mesh", 4).meet()
    ear.forget()
    # Rank 1 hears of ranks 2 and 3 over its hub, and of rank 0 over a spoke.
    cluster.patient(1)
    for rank in (0, 2):
        cluster.send(rank, 1, 0)
    cluster.send(2, 1, 1)
    cluster.send(0, 1, 1, flags=CANCEL)
    waiting = cluster.start(1)
    ear.wait(3)
    cluster.send(3, 1, 0)
    assert torch.equal(waiting.result(WAIT_S), total(4))
    cluster.send(3, 1, 1)
    assert torch.equal(cluster.start(1, 1).result(WAIT_S), total(4, 1))
    assert cluster.ranks[1].cancelled
    assert cluster.endpoints[1].recv(0.0) is None


@every_way
@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_without_a_share_and_then_with_one(make: Any, way: str, size: int, silent: int) -> None:
    cluster = make(way, size)
    for block in range(6):
        futures = [cluster.start(rank, block, rank != silent or block % 2 == 1) for rank in range(size)]
        results = [future.result(WAIT_S) for future in futures]
        parts = [part(rank, block) for rank in range(size) if rank != silent or block % 2 == 1]
        expected = parts[0] if len(parts) == 1 else sum(parts[1:], parts[0])
        assert all(torch.equal(result, expected) for result in results)


@every_way
def test_who_never_has_a_share_does_not_make_the_others_leave_off_for_ever(
    make: Any, way: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_path, "_MOST_LEFT_OFF", 3)
    monkeypatch.setattr(fast_path, "_PAUSE", 8)
    silent = size - 1
    cluster = make(way, size)
    expected = part(0)
    for rank in range(1, silent):
        expected = expected + part(rank)
    for _ in range(3 + 8 + 1 + 8):
        futures = [cluster.start(rank, contributes=rank != silent) for rank in range(size)]
        assert all(torch.equal(future.result(WAIT_S), expected) for future in futures)
    assert len(cluster.outcomes(0)) == 3 + 1
    # With a share it is one call again.
    cluster.patient(0)
    assert_total(cluster.reduce())
    assert cluster.outcomes(0) == [DONE]


@every_way
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 3.0e38])
def test_a_sum_that_is_not_finite_is_blamed_as_in_python(
    make: Any, way: str, size: int, wire: str, value: float
) -> None:
    cluster = make(way, size, wire)
    for rank in range(1, size):
        cluster.send(rank, 0, 0, given=torch.full(SHAPE, value if rank == size - 1 else 1.0))
    own = torch.full(SHAPE, 3.0e38)
    cause = "overflows f32" if value > 0 else f"node {size - 1} contributed a value that is not finite"
    with pytest.raises(ProtocolError, match=cause):
        cluster.start(0, own=own).result(WAIT_S)
    assert cluster.outcomes(0) == [0 if way == "star" else size - 1]


@pytest.mark.parametrize("way", ["pair", "mesh"])
def test_what_was_posted_goes_first(make: Any, way: str) -> None:
    cluster = make(way, 2).meet()
    cluster.endpoints[0].post(StepPlan(0, 1, (), 1, 1), "node-1")
    assert_total(cluster.reduce(1), 1)
    assert cluster.ranks[1].dropped == 1
    assert cluster.outcomes(0)[0] == 0


@every_way
@pytest.mark.parametrize("rank", [0, 1])
def test_closing_ends_the_wait(make: Any, way: str, size: int, rank: int) -> None:
    cluster = make(way, size).meet()
    waiting = cluster.start(rank, 1)
    cluster.endpoints[rank].close()
    with pytest.raises(EndpointClosed):
        waiting.result(WAIT_S)


def test_closing_one_end_alone_ends_the_wait(make: Any) -> None:
    """Whoever made the links may close them one by one."""
    cluster = make("mesh", 3).meet()
    waiting = cluster.start(1, 1)
    for end in cluster.ends(1):
        end.close()
    with pytest.raises(EndpointClosed):
        waiting.result(WAIT_S)


def test_closing_in_mid_call_is_safe(make: Any, ear: Ear) -> None:
    cluster = make("mesh", 4)
    waiting = ahead(cluster, ear, lambda: cluster.send(1, 0, 1))
    cluster.endpoints[0].close()
    # The call may be over or not; what was kept ahead goes with the endpoint.
    assert isinstance(waiting.exception(WAIT_S), EndpointClosed) or torch.equal(waiting.result(0), total(4))
    with pytest.raises(EndpointClosed):
        cluster.endpoints[0].recv(0.0)


@pytest.mark.parametrize("wire", WIRES)
def test_the_rest_of_a_star_is_served_in_python(make: Any, wire: str) -> None:
    """The root's call has sent the sum to some, and could not to the rest."""
    cluster = make("star", 3, wire).meet()
    fast = cluster.ranks[0]._fast
    ((kind, prepared),) = fast._prepared.items()
    sevens = np.random.default_rng(7).standard_normal(SHAPE).astype(np.float32)

    def serve_one(_place: bytes, _tensor: int) -> int:
        prepared.scratch[:] = sevens.tobytes()
        return 1

    fast._prepared[kind] = dataclasses.replace(prepared, reduce=serve_one)
    result = cluster.start(0, 4).result(WAIT_S)
    answer = cluster.endpoints[2].recv(WAIT_S)
    codec: Any = CODECS[wire]  # type: ignore[index]
    assert answer is not None
    assert answer.message == Reduced(1, 1, 4, 0, 0, codec.header(SHAPE))
    assert bytes(answer.tensors[0]) == bytes(codec.encode(sevens))
    assert np.array_equal(result.numpy(), codec.decode(bytes(answer.tensors[0]), SHAPE))
    assert cluster.endpoints[1].recv(0.05) is None


@pytest.mark.parametrize("variable", ["TPIEDGE_NATIVE", "TPIEDGE_FAST_LINK"])
def test_it_can_be_switched_off(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "0")
    assert native_library.native_library() is None
    monkeypatch.setenv(variable, "1")
    assert native_library.native_library() is not None


def test_no_libzmq_is_called_that_might_be_another() -> None:
    other = type("Library", (), {"zmq_msg_send": ctypes.CDLL(None).getpid})()
    extension = ctypes.CDLL(sys.modules["zmq.backend.cython._zmq"].__file__)
    with pytest.raises(Exception, match="more than one zmq_msg_send"):
        native_library._address_of("zmq_msg_send", extension, other)


def test_on_another_system_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(Exception, match="darwin"):
        native_library._zmq_functions()
