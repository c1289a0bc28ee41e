"""The master's control thread over an in-process hub: who gets what when, and how a loss is told."""

import queue
from collections.abc import Callable, Iterator

import pytest

from tpiedge.clock import MonotonicClock
from tpiedge.errors import InternalError, OutOfMemory, PeerLost, TpiedgeError
from tpiedge.launch.bootstrap import control_name
from tpiedge.local.cluster import Controller
from tpiedge.master.membership import Membership
from tpiedge.transport.framing import CONTROL
from tpiedge.transport.inprocess import InProcessHub, InProcessSpoke
from tpiedge.wire.control import (
    Assign,
    Connect,
    Failed,
    Hello,
    Listening,
    Lost,
    Pulse,
    Ready,
    Shutdown,
    Token,
)
from tpiedge.wire.messages import PROTOCOL, Message
from tpiedge.wire.weights import ALL_PINNED

WAIT_S = 20.0
ROOT = "tcp://127.0.0.1:7071"


class Master:
    """A controller of two nodes whose processes end when a test says so."""

    def __init__(self) -> None:
        self.hub = InProcessHub("master", CONTROL)
        self.spokes = [self.hub.spoke(control_name(rank, 1)) for rank in range(2)]
        self.causes: list[str | None] = [None, None]
        clock = MonotonicClock()
        self.controller = Controller(
            self.hub,
            clock,
            Membership(2, clock.now(), timeout_s=60.0, start_s=60.0),
            epoch=1,
            heartbeat_s=0.02,
            assign=self.assign,
            exit_causes=lambda: self.causes,
        )

    def assign(self, rank: int) -> Assign:
        return Assign(
            epoch=1,
            rank=rank,
            nodes=(0, 1),
            attention=(0, 1),
            ffn=(0, 1),
            pack="p",
            compute="f32",
            threads=1,
            capacity_tokens=1,
            context_tokens=1,
            sequences=1,
            speculate=0,
            peer_keys=(),
            weights=ALL_PINNED,
        )

    def hello(self, rank: int, protocol: int = PROTOCOL) -> None:
        self.spokes[rank].send(Hello(0, rank, 1, protocol, "0", 1, "cpu"))

    def start(self) -> None:
        """Both nodes join and are ready."""
        for rank in range(2):
            self.hello(rank)
        self.spokes[0].send(Listening(1, 0, ROOT))
        for rank in range(2):
            expect(self.spokes[rank], Assign)
            self.spokes[rank].send(Ready(1, rank, 1, 0.1))
        assert isinstance(self.event(), Ready)
        assert isinstance(self.event(), Ready)

    def event(self) -> Message | TpiedgeError:
        return self.controller.events.get(timeout=WAIT_S)


@pytest.fixture
def master() -> Iterator[Master]:
    found = Master()
    found.controller.start()
    yield found
    found.controller.close()
    found.hub.close()


def expect(spoke: InProcessSpoke, kind: type) -> Message:
    """The next message of that kind; what else comes is passed over."""
    for _ in range(1000):
        envelope = spoke.recv(WAIT_S)
        assert envelope is not None, f"no {kind.__name__} came"
        if isinstance(envelope.message, kind):
            return envelope.message
    raise AssertionError(f"no {kind.__name__} among 1000 messages")


def test_a_follower_connects_once_rank_0_listens(master: Master) -> None:
    master.hello(1)
    part = expect(master.spokes[1], Assign)
    assert isinstance(part, Assign)
    assert part.rank == 1
    master.hello(0)
    expect(master.spokes[0], Assign)
    master.spokes[0].send(Listening(1, 0, ROOT))
    assert expect(master.spokes[1], Connect) == Connect(1, ((0, ROOT),))


def test_everyone_is_told_how_everyone_does(master: Master) -> None:
    master.start()
    pulse = expect(master.spokes[1], Pulse)
    assert isinstance(pulse, Pulse)
    assert [peer.rank for peer in pulse.peers] == [0, 1]


def test_an_ended_process_is_a_loss_that_all_hear_of(master: Master) -> None:
    master.start()
    master.causes[1] = "its process was killed by SIGKILL"
    event = master.event()
    assert isinstance(event, PeerLost)
    assert str(event) == "node 1 was lost during the work: its process was killed by SIGKILL"
    lost = expect(master.spokes[0], Lost)
    assert lost == Lost(1, 1, "its process was killed by SIGKILL")


def test_a_loss_before_all_are_ready_is_a_loss_during_the_start(master: Master) -> None:
    master.hello(0)
    expect(master.spokes[0], Assign)
    master.causes[0] = "gone"
    assert str(master.event()) == "node 0 was lost during the start: gone"


def test_a_node_that_gave_up_says_why(master: Master) -> None:
    """Its own loss of a peer explains its end, where no other end explains it."""
    master.start()
    master.spokes[1].send(Failed(1, 1, "", "PeerLost", "node 0 was lost during X: without progress"))
    master.spokes[0].send(Token(1, "marker", 0, 0, ()))
    assert isinstance(master.event(), Token)
    master.causes[1] = "its process ended with status 3"
    assert "it gave up, because node 0 was lost during X" in str(master.event())


@pytest.mark.parametrize(
    ("speak", "complaint"),
    [
        (lambda m: m.hello(0, protocol=PROTOCOL + 1), "update tpiedge on both"),
        (lambda m: m.spokes[0].send(Hello(0, 1, 1, PROTOCOL, "0", 1, "cpu")), "speaks for another node"),
        (lambda m: m.spokes[0].send(Shutdown(1)), "not a node's to send"),
        (lambda m: m.spokes[0].send(Ready(1, 0, 1, 0.1)) or m.hello(0), "already"),
        (lambda m: m.hello(0) or m.spokes[0].send(Listening(1, 0, "tcp://x")), "which is no address"),
    ],
)
def test_what_breaks_the_protocol_is_a_loss_in_words(
    master: Master, speak: Callable[[Master], None], complaint: str
) -> None:
    speak(master)
    event = master.event()
    while isinstance(event, Ready):
        event = master.event()
    assert isinstance(event, PeerLost)
    assert complaint in str(event)


def test_a_nodes_own_fault_keeps_its_kind(master: Master) -> None:
    master.start()
    master.spokes[1].send(Failed(1, 1, "", "OutOfMemory", "node 1 ran out of memory"))
    event = master.event()
    assert isinstance(event, OutOfMemory)
    assert str(event) == "node 1 ran out of memory"


def test_a_defect_of_the_thread_itself_becomes_an_event() -> None:
    master = Master()
    master.assign = lambda rank: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    master.controller = Controller(
        master.hub,
        MonotonicClock(),
        Membership(2, 0.0, timeout_s=1e9, start_s=1e9),
        1,
        0.02,
        lambda rank: master.assign(rank),
        lambda: [None, None],
    )
    master.controller.start()
    master.hello(0)
    try:
        event = master.event()
        assert isinstance(event, InternalError)
        assert "ZeroDivisionError" in str(event)
        with pytest.raises(queue.Empty):
            master.controller.events.get_nowait()
    finally:
        master.controller.close()
        master.hub.close()
