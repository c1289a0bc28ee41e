"""The all-reduce in one native call, over ZeroMQ: the bits and the laws of Python's, whatever comes between."""

import ctypes
import queue
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.conftest import Network
from tpiedge.clock import MonotonicClock
from tpiedge.collectives import pair
from tpiedge.collectives.communicator import Tag
from tpiedge.collectives.liveness import DeadlineLiveness
from tpiedge.errors import Misconduct, PeerLost, ProtocolError
from tpiedge.transport import native_library
from tpiedge.transport.endpoint import EndpointClosed
from tpiedge.transport.reduction import DONE
from tpiedge.transport.zeromq_endpoint import ZmqEndpoint
from tpiedge.wire.codec import encode
from tpiedge.wire.data import Partial, Reduced, StepPlan
from tpiedge.wire.tensors import TensorHeader

WAIT_S = 10.0
SHAPE = (2, 33)
ROW = TensorHeader("f32", SHAPE)
PLAN = StepPlan(1, 1, (), 1, 1)
SIZES = (2, 3, 5)

pytestmark = pytest.mark.skipif(native_library.native_library() is None, reason="not built")


def part(rank: int, block: int = 0) -> torch.Tensor:
    """Of magnitudes so different that the order of summation shows."""
    generator = torch.Generator().manual_seed(100 * block + rank)
    return torch.randn(SHAPE, generator=generator) * 10.0 ** (rank * 3 % 7)


def total(size: int, block: int = 0) -> torch.Tensor:
    summed = part(0, block)
    for rank in range(1, size):
        summed = summed + part(rank, block)
    return summed


class Cluster:
    """All ranks on real sockets, each in a thread of its own, and what the fast calls of each came to."""

    def __init__(self, size: int, timeout_s: float = WAIT_S) -> None:
        self.size = size
        self.network = Network("zeromq")
        self.endpoints: list[Any] = [self.network.hub(), *(self.network.spoke(r) for r in range(1, size))]
        self.calls: dict[str, queue.SimpleQueue[int]] = {
            one.name: queue.SimpleQueue() for one in self.endpoints
        }
        self._pool = ThreadPoolExecutor(size)
        live = [DeadlineLiveness(MonotonicClock(), timeout_s) for _ in range(size)]
        self.ranks: list[Any] = [pair.root(self.endpoints[0], live[0], epoch=1, size=size)]
        for rank in range(1, size):
            self.ranks.append(pair.leaf(self.endpoints[rank], live[rank], epoch=1, rank=rank, size=size))
        self.together(lambda one: one.next_plan() if one.rank else one.announce(PLAN))

    def together(self, work: Callable[[Any], Any]) -> list[Any]:
        return [future.result(WAIT_S) for future in [self._pool.submit(work, one) for one in self.ranks]]

    def start(self, rank: int, block: int = 0, contributes: bool = True) -> "Future[torch.Tensor]":
        one = self.ranks[rank]
        return self._pool.submit(one.all_reduce, part(rank, block), Tag(1, block, 0), contributes=contributes)

    def reduce(self, block: int = 0) -> list[torch.Tensor]:
        return self.together(lambda one: one.all_reduce(part(one.rank, block), Tag(1, block, 0)))

    def outcome(self, rank: int) -> int:
        """What the next fast call of `rank` came to."""
        return self.calls[f"node-{rank}"].get(timeout=WAIT_S)

    def outcomes(self, rank: int) -> list[int]:
        """Of all so far."""
        calls = self.calls[f"node-{rank}"]
        return [calls.get() for _ in range(calls.qsize())]

    def close(self) -> None:
        self.network.close()
        self._pool.shutdown()


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []
    plain = ZmqEndpoint._reduce

    def watched(self: ZmqEndpoint, *arguments: Any) -> int:
        outcome = plain(self, *arguments)
        next(one.calls[self.name] for one in made if self in one.endpoints).put(outcome)
        return outcome

    def make_one(*arguments: Any) -> Cluster:
        made.append(Cluster(*arguments))
        return made[-1]

    monkeypatch.setattr(ZmqEndpoint, "_reduce", watched)
    yield make_one
    for one in made:
        one.close()


def assert_total(results: list[torch.Tensor], block: int = 0) -> None:
    for result in results:
        assert torch.equal(result, total(len(results), block))


@pytest.mark.parametrize("size", SIZES)
def test_the_steady_state_is_one_call_with_the_bits_of_python(make: Any, size: int) -> None:
    cluster = make(size)
    for block in range(30):
        assert_total(cluster.reduce(block), block)
    for rank in range(size):
        assert cluster.outcomes(rank).count(DONE) > 10


@pytest.mark.parametrize("size", SIZES)
def test_the_bytes_are_counted_as_in_python(make: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for switch in ("1", "0"):
        monkeypatch.setenv("TPIEDGE_FAST_LINK", switch)
        cluster = make(size)
        for block in range(5):
            cluster.reduce(block)
        counts.append([(one.bytes_sent, one.bytes_received) for one in cluster.endpoints])
        assert (cluster.outcomes(0) == []) == (switch == "0")
    assert counts[0] == counts[1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("late", [0, 1])
def test_a_late_peer_is_waited_for_in_python(make: Any, size: int, late: int) -> None:
    cluster = make(size)
    early = [rank for rank in range(size) if rank != late]
    futures = {rank: cluster.start(rank) for rank in early}
    # Whoever sends first has sent; the root of a star has not.
    for rank in early:
        assert cluster.outcome(rank) == (0 if rank == 0 and size > 2 else 1)
    futures[late] = cluster.start(late)
    assert_total([futures[rank].result(WAIT_S) for rank in range(size)])
    for block in range(1, 5):
        assert_total(cluster.reduce(block), block)
    assert DONE in cluster.outcomes(0)


def test_an_early_message_is_held_and_found(make: Any) -> None:
    cluster = make(3)
    for block in (1, 0):
        for rank in (1, 2):
            message = Partial(1, 1, block, 0, rank, ROW)
            cluster.endpoints[rank].send(message, (part(rank, block).numpy().data,))
    for block in (0, 1):
        result = cluster.ranks[0].all_reduce(part(0, block), Tag(1, block, 0))
        assert torch.equal(result, total(3, block))
    # While one is held, nothing is done in one call.
    assert cluster.outcomes(0) == [0]
    assert cluster.endpoints[0].bytes_received == 4 * (64 + ROW.nbytes)


@pytest.mark.parametrize("size", [2, 3])
def test_a_message_of_another_epoch_is_dropped(make: Any, size: int) -> None:
    cluster = make(size)
    cluster.endpoints[1].send(Partial(0, 1, 0, 0, 1, ROW), (part(1).numpy().data,))
    assert_total(cluster.reduce())
    assert cluster.ranks[0].dropped == 1


@pytest.mark.parametrize("size", [2, 3])
def test_who_speaks_for_another_is_named(make: Any, size: int) -> None:
    cluster = make(size)
    cluster.endpoints[1].send(Partial(1, 1, 0, 0, 0, ROW), (part(1).numpy().data,))
    with pytest.raises(ProtocolError, match="node 1 speaks for another"):
        cluster.ranks[0].all_reduce(part(0), Tag(1, 0, 0))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_message_of_two_frames_is_malformed(make: Any, rank: int) -> None:
    cluster = make(2)
    sender, receiver = cluster.endpoints[1 - rank], cluster.endpoints[rank]
    message = Reduced(1, 1, 0, 0, 2, ROW) if rank else Partial(1, 1, 0, 0, 1, ROW)
    route = [sender._routes["node-1"]] if rank else []
    sender._socket.send_multipart([*route, encode(message) + bytes(ROW.nbytes), b"", b"more"])
    with pytest.raises(Misconduct, match="more than one frame"):
        cluster.ranks[rank].all_reduce(part(rank), Tag(1, 0, 0))
    assert receiver.counters.malformed == 1
    assert receiver.recv(0.0) is None


@pytest.mark.parametrize("size", [2, 3])
def test_a_peer_revoked_in_mid_run_is_not_heard(make: Any, size: int) -> None:
    cluster = make(size, 1.0)
    for block in range(3):
        cluster.reduce(block)
    waiting = cluster.start(0, 3)
    cluster.endpoints[0].admission.revoke("node-1")
    for rank in range(1, size):
        cluster.endpoints[rank].send(Partial(1, 1, 3, 0, rank, ROW), (part(rank, 3).numpy().data,))
    with pytest.raises(PeerLost, match="node 1"):
        waiting.result(WAIT_S)
    assert cluster.endpoints[0].counters.revoked == 1


def test_a_list_that_changes_during_the_call_stops_it(make: Any) -> None:
    cluster = make(2)
    changes = cluster.endpoints[0].admission.changes
    cluster.reduce()
    while cluster.outcome(0) != DONE:
        cluster.reduce()
    waiting = cluster.start(0, 1)
    # The call may have begun or not: either way it must not take the message for good without a look at the list.
    changes.value += 1
    cluster.endpoints[1].send(Partial(1, 1, 1, 0, 1, ROW), (part(1, 1).numpy().data,))
    assert torch.equal(waiting.result(WAIT_S), total(2, 1))
    assert DONE not in cluster.outcomes(0)


@pytest.mark.parametrize("size", [2, 3])
def test_a_connection_made_anew_ends_the_wait(make: Any, size: int) -> None:
    cluster = make(size)
    cluster.reduce()
    spoke = cluster.endpoints[1]
    spoke._socket.disconnect(spoke.address)
    spoke._socket.connect(spoke.address)
    waiting = cluster.start(0, 1)
    deadline = time.monotonic() + WAIT_S
    # A socket works on its connections while somebody calls it.
    while not waiting.done() and time.monotonic() < deadline:
        spoke.recv(0.01)
    with pytest.raises(PeerLost, match="made anew"):
        waiting.result(0)


@pytest.mark.parametrize("size", SIZES)
def test_a_cancel_reaches_all_after_the_same_block(make: Any, size: int) -> None:
    cluster = make(size)
    seen = []
    for block in range(3):
        if block == 1:
            cluster.ranks[0].request_cancel()
        assert_total(cluster.reduce(block), block)
        seen.append([one.cancelled for one in cluster.ranks])
    assert seen == [[False] * size, [True] * size, [True] * size]
    plan = StepPlan(1, 2, (), 1, 1)
    cluster.together(lambda one: one.next_plan() if one.rank else one.announce(plan))
    assert not any(one.cancelled for one in cluster.ranks)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_without_a_share_and_then_with_one(make: Any, size: int, silent: int) -> None:
    cluster = make(size)
    for block in range(6):
        futures = [cluster.start(rank, block, rank != silent or block % 2 == 1) for rank in range(size)]
        results = [future.result(WAIT_S) for future in futures]
        parts = [part(rank, block) for rank in range(size) if rank != silent or block % 2 == 1]
        expected = parts[0] if len(parts) == 1 else sum(parts[1:], parts[0])
        assert all(torch.equal(result, expected) for result in results)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 3.4e38])
def test_a_sum_that_is_not_finite_is_blamed_as_in_python(make: Any, size: int, value: float) -> None:
    cluster = make(size)
    for rank in range(1, size):
        array = np.full(SHAPE, value if rank == size - 1 else 1.0, np.float32)
        cluster.endpoints[rank].send(Partial(1, 1, 0, 0, rank, ROW), (array.data,))
    own = torch.full(SHAPE, 3.4e38)
    cause = "overflows f32" if value > 0 else f"node {size - 1} contributed a value that is not finite"
    with pytest.raises(ProtocolError, match=cause):
        cluster.ranks[0].all_reduce(own, Tag(1, 0, 0))
    assert cluster.outcomes(0) == [1 if size == 2 else 0]


def test_what_was_posted_goes_first(make: Any) -> None:
    cluster = make(2)
    cluster.reduce()
    cluster.endpoints[0].post(StepPlan(0, 1, (), 1, 1), "node-1")
    assert_total(cluster.reduce(1), 1)
    assert cluster.ranks[1].dropped == 1
    assert cluster.outcomes(0)[1] == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_closing_ends_the_wait(make: Any, rank: int) -> None:
    cluster = make(2)
    cluster.reduce()
    waiting = cluster.start(rank, 1)
    cluster.endpoints[rank].close()
    with pytest.raises(EndpointClosed):
        waiting.result(WAIT_S)


def test_the_rest_of_a_star_is_served_in_python(network: Any) -> None:
    endpoints = [network.hub(), network.spoke(1), network.spoke(2)]
    for rank in (1, 2):
        endpoints[rank].send(Partial(0, 1, 0, 0, rank, None), timeout_s=WAIT_S)
        assert endpoints[0].recv(WAIT_S) is not None
    root = pair.root(endpoints[0], DeadlineLiveness(MonotonicClock(), WAIT_S), epoch=1, size=3)
    frames = root._frames_for(SHAPE)  # type: ignore[attr-defined]

    def serve_one(_place: bytes, _tensor: int) -> int:
        frames.array[:] = 7
        return 1

    frames.reduce = serve_one
    result = root.all_reduce(part(0), Tag(1, 4, 2))
    answer = endpoints[2].recv(WAIT_S)
    assert answer is not None
    assert answer.message == Reduced(1, 1, 4, 2, 0, ROW)
    assert bytes(answer.tensors[0]) == result.numpy().tobytes() == np.full(SHAPE, 7, np.float32).tobytes()
    assert endpoints[1].recv(0.05) is None


@pytest.mark.parametrize("variable", ["TPIEDGE_NATIVE", "TPIEDGE_FAST_LINK"])
def test_it_can_be_switched_off(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "0")
    assert native_library.native_library() is None


def test_no_libzmq_is_called_that_might_be_another() -> None:
    other = type("Library", (), {"zmq_msg_send": ctypes.CDLL(None).getpid})()
    extension = ctypes.CDLL(sys.modules["zmq.backend.cython._zmq"].__file__)
    with pytest.raises(Exception, match="more than one zmq_msg_send"):
        native_library._address_of("zmq_msg_send", extension, other)


def test_on_another_system_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(Exception, match="darwin"):
        native_library._zmq_functions()
