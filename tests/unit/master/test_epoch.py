import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.clock import ManualClock
from tests.unit.wire.golden import SHARE
from tpiedge.errors import InternalError, OutOfMemory, PeerLost, ResourceError, TpiedgeError, UserError
from tpiedge.launch.bootstrap import Timing
from tpiedge.master.epoch import Epoch, EpochEvent
from tpiedge.planner.network import listens
from tpiedge.wire import control
from tpiedge.wire.fields import ALL_PINNED, CollectiveChoice, Message


def at(rank: int) -> str:
    return f"tcp://127.0.0.1:{7071 + rank}"


class Nodes:
    def __init__(self, count: int = 2, collective: CollectiveChoice = "auto") -> None:
        self.collective = collective
        self.clock = ManualClock()
        self.posted: list[tuple[int, Message]] = []
        self.events: list[EpochEvent] = []
        self.count = count
        self.epoch = Epoch(
            3,
            self.clock,
            count,
            Timing(start_s=60.0),
            self._assign,
            lambda message, rank: self.posted.append((rank, message)),
            self.events.append,
        )

    def _assign(self, rank: int) -> control.Assign:
        nodes = tuple(range(self.count))
        return control.Assign(3, rank, nodes, SHARE, "f32", 1, 1, 1, 1, 0, (), ALL_PINNED, self.collective)

    def hello(self, rank: int) -> None:
        self.epoch.handle(rank, control.Hello(0, rank))

    def start(self) -> None:
        for rank in range(self.count):
            self.hello(rank)
        for rank in range(self.count):
            if listens(rank, self.count, self.collective):
                self.listening(rank)
        for rank in range(self.count):
            self.epoch.handle(rank, control.Ready(3, rank, 1))
        self.posted.clear()
        self.events.clear()

    def listening(self, rank: int) -> None:
        self.epoch.handle(rank, control.Listening(3, rank, at(rank)))

    def assigned(self) -> list[int]:
        return [rank for rank, message in self.posted if isinstance(message, control.Assign)]

    def connected(self) -> dict[int, dict[int, str]]:
        told = [(rank, message) for rank, message in self.posted if isinstance(message, control.Connect)]
        assert len({rank for rank, _ in told}) == len(told), "told twice"
        return {rank: dict(message.endpoints) for rank, message in told}

    def error(self) -> TpiedgeError:
        (found,) = [event for event in self.events if isinstance(event, TpiedgeError)]
        return found


@given(st.permutations([("hello", 0), ("hello", 1), ("hello", 2), ("listening", 0), ("listening", 1)]))
def test_node_is_told_of_peers_only_after_they_listen(order: list[tuple[str, int]]) -> None:
    nodes, done = Nodes(3), set()
    for event in order:
        if event[0] == "listening" and ("hello", event[1]) not in done:
            return  # no node listens before it has its part; that is another test
        done.add(event)
        nodes.hello(event[1]) if event[0] == "hello" else nodes.listening(event[1])
        expected = {
            rank: {other: at(other) for other in range(rank)}
            for rank in (1, 2)
            if ("hello", rank) in done and all(("listening", other) in done for other in range(rank))
        }
        assert nodes.connected() == expected
    assert nodes.events == []


@pytest.mark.parametrize(
    ("rank", "endpoint", "words"),
    [
        (1, "tcp://somewhere.example:80", "which is no address"),
        (1, "tcp://127.0.0.1:*", "which is no address"),
        (2, "tcp://127.0.0.1:7073", "nobody is to connect to it"),
        (0, "tcp://127.0.0.1:7071", "it has said so"),
    ],
)
def test_invalid_listening_message_is_a_breach(rank: int, endpoint: str, words: str) -> None:
    """No node connects to the last rank, so it must not listen; no node may say twice where it listens."""
    nodes = Nodes(3)
    for joined in range(3):
        nodes.hello(joined)
    nodes.listening(0)
    nodes.epoch.handle(rank, control.Listening(3, rank, endpoint))
    error = nodes.error()
    assert isinstance(error, PeerLost)
    assert (error.rank, words in str(error)) == (rank, True)
    assert nodes.epoch.members[rank].breach
    assert 2 not in nodes.connected()


def test_peer_endpoint_uses_the_nodes_source_address() -> None:
    """But to rank 0, which is the master's own, and listens where it says."""
    nodes = Nodes(3)
    for rank in range(3):
        nodes.hello(rank)
    nodes.epoch.handle(0, control.Listening(3, 0, "tcp://0.0.0.0:7071"), "127.0.0.1")
    nodes.epoch.handle(1, control.Listening(3, 1, "tcp://192.0.2.1:22"), "10.0.0.7")
    assert nodes.connected()[2] == {0: "tcp://0.0.0.0:7071", 1: "tcp://10.0.0.7:22"}


def test_node_loss_is_broadcast_and_raised_once() -> None:
    nodes = Nodes(3)
    nodes.start()
    nodes.epoch.mark_lost(1, "cut off")
    nodes.epoch.ended(1, "status 1")
    assert nodes.posted == [(0, control.Lost(3, 1, "cut off")), (2, control.Lost(3, 1, "cut off"))]
    assert str(nodes.error()) == "node 1 was lost during the work: cut off"
    assert not nodes.epoch.all_ready


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("UserError", UserError),
        ("OutOfMemory", OutOfMemory),
        ("ReadFault", ResourceError),
        ("IntegrityError", ResourceError),
        ("InternalError", InternalError),
        ("ProtocolError", PeerLost),
    ],
)
def test_node_failure_maps_to_its_error_class(kind: str, error: type) -> None:
    nodes = Nodes()
    nodes.start()
    nodes.epoch.handle(1, control.Failed(3, 1, "", kind, "in words"))
    assert type(nodes.error()) is error
    assert "in words" in str(nodes.error())
    assert not nodes.epoch.all_ready


@pytest.mark.parametrize("kind", ["PeerLost", "Misconduct"])
@pytest.mark.parametrize("end", ["ended", "silent"])
def test_peer_loss_report_explains_the_reporters_own_end(kind: str, end: str) -> None:
    """Beside other work a node may take longer to end than it may be silent; its word explains that, too."""
    nodes = Nodes()
    nodes.start()
    nodes.epoch.handle(1, control.Failed(3, 1, "", kind, "node 0 was silent"))
    assert nodes.events == []
    if end == "ended":
        nodes.epoch.ended(1, "status 3")
    else:
        nodes.clock.advance(Timing().timeout_s + 0.1)
        nodes.epoch.handle(0, control.Heartbeat(3, 0, 0, 0, 0))
        nodes.epoch.tick()
    assert "it gave up, because node 0 was silent" in str(nodes.error())
    assert [bool(one.gave_up) for one in nodes.epoch.members] == [False, True]


def test_rank_0_report_of_a_lost_node_is_trusted() -> None:
    nodes = Nodes()
    nodes.start()
    message = str(PeerLost(1, "the all-reduce of step 1", "its connection broke: why"))
    nodes.epoch.handle(0, control.Failed(3, 0, "r-1", "PeerLost", message))
    assert nodes.events == []
    nodes.epoch.ended(0, "status 3")
    assert str(nodes.events[0]) == "node 1 was lost during the work: its connection broke: why"


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (1, control.Token(3, "r-1", 0, 5, ())),
        (1, control.PromptScores(3, "r-1", 0, (0.5,))),
        (1, control.Finished(3, "r-1", "stop", 1, 1, 0, 1)),
        (1, control.Listening(3, 1, at(1))),
        (0, control.Listening(3, 0, at(0))),
        (0, control.Connect(3, ())),
        (1, control.Hello(3, 0)),
        (1, control.Ready(3, 0, 1)),
        (1, control.Shutdown(3)),
        (0, control.Lost(3, 1, "x")),
        (0, control.Ready(3, 0, 1)),
    ],
)
def test_node_sending_a_forbidden_message_is_lost(rank: int, message: Message) -> None:
    nodes = Nodes()
    nodes.start()
    nodes.epoch.handle(rank, message)
    error = nodes.error()
    assert isinstance(error, PeerLost)
    assert error.rank == rank


def test_a_loading_node_is_given_more_time() -> None:
    nodes = Nodes(1)
    nodes.hello(0)
    nodes.epoch.handle(0, control.Loading(3, 0, 0, 1))
    nodes.clock.advance(8.9)
    nodes.epoch.tick()
    assert len(nodes.events) == 1
    nodes.clock.advance(0.2)
    nodes.epoch.tick()
    assert str(nodes.events[1]).endswith("silent for 9.1 s (killed, frozen or cut off)")


def test_a_node_that_never_joins_is_lost_after_the_start_limit() -> None:
    nodes = Nodes(1)
    nodes.clock.advance(59.0)
    nodes.epoch.tick()
    assert not nodes.events
    nodes.clock.advance(2.0)
    nodes.epoch.tick()
    assert str(nodes.error()).endswith("it did not start within 60 s")


def test_node_that_never_listens_is_lost_and_its_waiters_are_not() -> None:
    nodes = Nodes(3)
    nodes.hello(0)
    nodes.listening(0)
    nodes.clock.advance(30.0)
    nodes.hello(2)
    nodes.hello(1)  # and says nothing more of that
    for _ in range(12):
        assert nodes.events == []
        nodes.clock.advance(5.0)
        for rank in range(3):
            nodes.epoch.handle(rank, control.Heartbeat(3, rank, 0, 0, 0))
        nodes.epoch.tick()
    assert (
        str(nodes.error()) == "node 1 was lost during the start: it did not say where it listens within 60 s"
    )
    assert 2 not in nodes.connected()


@pytest.mark.parametrize(("message", "disputes"), [("node 1 sent a NaN", True), ("node 0 sent a NaN", False)])
def test_a_report_on_the_masters_own_node_is_no_dispute(message: str, disputes: bool) -> None:
    nodes = Nodes(3)
    nodes.start()
    nodes.epoch.handle(2, control.Failed(3, 2, "", "Misconduct", message))
    assert [one.disputes for one in nodes.epoch.members] == [False, False, disputes]
