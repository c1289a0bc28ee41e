"""An admitted peer sends unawaited messages without end: they take neither much memory nor much time."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import zmq

from tests.contract.hub_process import HubProcess
from tests.contract.networks import Network
from tpiedge.clock import MonotonicClock
from tpiedge.collectives.communicator import Doing, Tag
from tpiedge.collectives.inbox import MAX_HELD, MAX_HELD_BYTES, Inbox, ReceivedPart
from tpiedge.collectives.local import DeadlineLiveness
from tpiedge.errors import Misconduct, PeerError
from tpiedge.transport.endpoint import Envelope, LinkReset, MalformedMessage, Unreachable
from tpiedge.transport.framing import CONTROL, TENSOR, Plane
from tpiedge.transport.inprocess import InProcessHub
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.units import KIB, MIB
from tpiedge.wire.control import Shutdown
from tpiedge.wire.data import Partial
from tpiedge.wire.tensors import TensorHeader

WAIT_S = 20.0
SMALL = Plane(header_limit=1000, tensor_limit=64 * KIB, queue_length=16, waiting_limit=MIB)


@pytest.fixture
def network() -> Iterator[Network]:
    with closing(Network("zeromq")) as made:
        yield made


@pytest.mark.parametrize("plane", [TENSOR, CONTROL], ids=["tensor", "control"])
def test_the_largest_frames_are_bounded_in_memory_and_others_are_served(plane: Plane) -> None:
    with HubProcess(plane) as hub, hub.spoke("flooder") as flooder, hub.spoke("other") as other:
        flooder.send(Shutdown(1), timeout_s=WAIT_S)
        before = hub.rss
        sent = flood(flooder, bytes(plane.frame_limit), 600 * MIB // plane.frame_limit)
        hub.wait_until(lambda: hub.rss - before > plane.backlog_limit // 2)
        other.send(Shutdown(7), timeout_s=WAIT_S)
        hub.serve()
        answer = other.recv(WAIT_S)
        assert answer is not None
        assert answer.message == Shutdown(7)
        assert sent * plane.frame_limit > 400 * MIB
        assert hub.peak_rss - before < 300 * MIB


def flood(spoke: ZmqSpoke, frame: bytes, count: int) -> int:
    """As many as its own queue takes; the bytes are not copied into it."""
    for number in range(count):
        try:
            spoke._socket.send(frame, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return number
    return count


def test_a_message_without_end_ends_the_connection(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    """libzmq counts messages that are whole; this one never is, as far as the hub's owner sees."""
    hub, flooder, other = network.hub(SMALL), network.spoke(1, SMALL), network.spoke(2, SMALL)
    assert isinstance(hub, ZmqHub)
    assert isinstance(flooder, ZmqSpoke)
    for spoke in (flooder, other):
        spoke.send(Shutdown(1), timeout_s=WAIT_S)
        assert hub.recv(WAIT_S) is not None
    parts = 2 * SMALL.backlog_limit // SMALL.frame_limit
    with caplog.at_level(logging.WARNING):
        flooder._socket.send_multipart([bytes(SMALL.frame_limit)] * parts)
        wait_for(lambda: "cut a connection off" in caplog.text)
    other.send(Shutdown(7))
    *heard, broken = until_reset(hub, flooder)
    assert "node-1 broke and was made anew: it had sent more than" in str(broken)
    wait_for(lambda: Envelope("node-2", Shutdown(7)) in heard or heard.append(hub.recv(0.01)))


def until_reset(hub: ZmqHub, spoke: ZmqSpoke) -> Iterator[Envelope | PeerError | None]:
    """What is heard, errors included, until the connection of `spoke` is made anew."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        # A socket works on its connections while somebody calls it.
        spoke.recv(0.0)
        try:
            yield hub.recv(0.01)
        except LinkReset as error:
            yield error
            return
        except MalformedMessage as error:
            yield error


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_connects_again_gains_nothing() -> None:
    """For what came before still waits."""
    with HubProcess(CONTROL) as hub, hub.spoke("flooder") as flooder:
        flooder.send(Shutdown(1), timeout_s=WAIT_S)
        before = hub.rss
        with pytest.raises(Unreachable):
            send_without_end(flooder, bytes(CONTROL.frame_limit))
        assert hub.peak_rss - before < 300 * MIB
        hub.serve()
        flooder.send(Shutdown(7), timeout_s=WAIT_S)


def send_without_end(spoke: ZmqSpoke, frame: bytes) -> None:
    while True:
        spoke.send_frame(frame, timeout_s=1.0)


def test_much_traffic_that_is_received_is_no_flood(network: Network) -> None:
    hub, spoke = network.hub(SMALL), network.spoke(1, SMALL)
    frame = bytes(SMALL.frame_limit)
    for _ in range(4 * SMALL.backlog_limit // len(frame)):
        spoke.send_frame(frame, timeout_s=WAIT_S)  # type: ignore[attr-defined]
        assert hub.recv_frame(WAIT_S) is not None  # type: ignore[union-attr]


def test_what_is_kept_while_a_hub_waits_to_send_is_bounded_too(network: Network) -> None:
    hub, flooder = network.hub(SMALL), network.spoke(1, SMALL)
    assert isinstance(hub, ZmqHub)
    assert isinstance(flooder, ZmqSpoke)
    count = flood(flooder, bytes(SMALL.frame_limit), 24)
    with pytest.raises(Unreachable):
        hub.send(Shutdown(1), to="node-2", timeout_s=0.5)
    assert hub._held_bytes() <= SMALL.backlog_limit + SMALL.frame_limit
    for _ in range(count):
        assert hub.recv_frame(WAIT_S) is not None


class Early:
    """Rank 0, which awaits the first block, and two others, who send later ones."""

    def __init__(self) -> None:
        hub = InProcessHub("node-0")
        self._spokes = {rank: hub.spoke(f"node-{rank}") for rank in (1, 2)}
        self._inbox = Inbox(hub, {"node-1": 1, "node-2": 2}, 1, DeadlineLiveness(MonotonicClock(), WAIT_S))

    def send(self, rank: int, blocks: int, byte_count: int) -> None:
        large = TensorHeader("u8", (byte_count,))
        for block in range(1, blocks + 1):
            self.send_one(rank, block, large)

    def send_one(self, rank: int, block: int, header: TensorHeader | None) -> None:
        tensors = () if header is None else (bytes(header.nbytes),)
        self._spokes[rank].send(Partial(1, 1, block, 0, 0, rank, header), tensors)

    def receive(self) -> list[ReceivedPart]:
        tag = Tag(1, 0, 0)
        return list(self._inbox.collect(Partial, tag, {1, 2}, Doing("all-reduce", tag)))


@pytest.mark.parametrize(
    ("blocks", "byte_count"), [(3, MAX_HELD_BYTES // 2), (MAX_HELD + 1, 1)], ids=["bytes", "messages"]
)
def test_messages_that_come_too_early_are_blamed_on_their_sender(blocks: int, byte_count: int) -> None:
    early = Early()
    early.send(1, blocks, byte_count)
    early.send(2, 1, byte_count)
    with pytest.raises(Misconduct, match=f"too far ahead: {blocks} messages") as caught:
        early.receive()
    assert caught.value.rank == 1


@pytest.mark.parametrize(
    ("blocks", "byte_count"), [(2, MAX_HELD_BYTES // 2), (MAX_HELD, 1)], ids=["bytes", "messages"]
)
def test_what_one_may_be_ahead_does_not_depend_on_others(blocks: int, byte_count: int) -> None:
    early = Early()
    for rank in (1, 2):
        early.send(rank, blocks, byte_count)
    for rank in (1, 2):
        early.send_one(rank, 0, None)
    assert sorted(rank for rank, _, _ in early.receive()) == [1, 2]
