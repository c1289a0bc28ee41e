import contextlib
import time
from collections.abc import Callable

import pytest

from tests.unit.node.linked import EPOCH, Linked
from tpiedge.collectives.peer_channel import node_name
from tpiedge.errors import Misconduct, PeerLost
from tpiedge.node import link_survey
from tpiedge.node.link_survey import LinkSurvey
from tpiedge.planner.network import NetworkFacts
from tpiedge.transport.endpoint import Unreachable
from tpiedge.wire.control import Shutdown
from tpiedge.wire.data import LinkReport, MeasuredLink, Partial, Survey
from tpiedge.wire.epochs import Echo, Probe
from tpiedge.wire.fields import Message

LINK = MeasuredLink(0, 0.001, 1e9)
Play = Callable[["Player"], None]


class Player:
    """A node that takes part as the test says. `turn` begins when it is asked for its links."""

    def __init__(self, linked: Linked, rank: int) -> None:
        self.rank = rank
        self.endpoint = linked.endpoints[rank]
        self._alive = linked.alive[rank]

    def say(self, message: Message, to: int = 0) -> None:
        self.endpoint.send(message, to=node_name(to), timeout_s=20.0)

    def hear(self, kind: type) -> Message:
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline:
            self._alive.check_idle(0, "a test")
            envelope = self.endpoint.recv(0.1)
            message = envelope.message if envelope else None
            if isinstance(message, kind):
                return message
            if isinstance(message, Probe):
                echo = Echo(EPOCH, message.number, bytes(message.answer_bytes))
                self.say(echo, int(envelope.sender.removeprefix("node-")))
        raise AssertionError(f"no {kind.__name__} came")

    def turn(self) -> None:
        while self.hear(Survey).turn != self.rank:
            pass


def surveyed(linked: Linked, plays: dict[int, Play] | None = None) -> list[object]:
    acts = plays or {}

    def part(rank: int) -> object:
        if rank in acts:
            return acts[rank](Player(linked, rank))
        survey = LinkSurvey(
            linked.endpoints[rank], linked.alive[rank], linked.clock, EPOCH, rank, linked.size
        )
        return survey.run(range(rank))

    def work(rank: int) -> object:
        try:
            return part(rank)
        except Exception as error:
            # The master would do so, too: no other rank waits for this one.
            linked.lose(error.rank if isinstance(error, Misconduct | PeerLost) else rank, str(error))
            raise

    return linked.run(work)


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_survey, "_TURN_S", 3.0)
    monkeypatch.setattr(link_survey, "_PAIR_S", 1.0)


@pytest.mark.parametrize("size", [3, 4])
def test_rank_0_learns_of_every_link(size: int) -> None:
    with Linked(size) as linked:
        facts, *others = surveyed(linked)
    assert others == [None] * (size - 1)
    assert isinstance(facts, NetworkFacts)
    assert sorted(facts.links) == [(low, high) for low in range(size) for high in range(low + 1, size)]
    assert all(0 <= link.one_way_latency_s < 0.1 for link in facts.links.values())
    assert all(link.bytes_per_s is None or link.bytes_per_s > 1e6 for link in facts.links.values())
    assert len(set(facts.hosts)) == len(facts.cores) == 1
    assert len(facts.hosts[0]) <= 256
    assert facts.round_trips_s.keys() == facts.links.keys()
    assert all(0 < trip_s < 1 for trip_s in facts.round_trips_s.values())


def reporting(*links: MeasuredLink, sender: int = 2, host: str = "h", cores: int = 1) -> Play:
    def play(player: Player) -> None:
        player.turn()
        player.say(LinkReport(EPOCH, sender, host, cores, links))
        if sender == 2:
            with contextlib.suppress(PeerLost):
                player.hear(Survey)  # the end, if it comes to that

    return play


@pytest.mark.parametrize(
    "play",
    [
        reporting(LINK, sender=1),
        reporting(),
        reporting(MeasuredLink(1, 0.1, 1e9)),
        reporting(LINK, LINK),
        reporting(LINK, MeasuredLink(2, 0.1, 1e9)),
        reporting(LINK, MeasuredLink(127, 0.1, 1e9)),
    ],
    ids=["another's", "none", "not to rank 0", "twice", "to itself", "to nobody"],
)
def test_impossible_link_report_is_misconduct(play: Play) -> None:
    with Linked(3) as linked:
        error = surveyed(linked, {2: play})[0]
    assert isinstance(error, Misconduct)
    assert error.rank == 2
    assert "node 2 reports links that it cannot have" in str(error)


def out_of_turn(message: Message) -> Play:
    def play(player: Player) -> None:
        player.hear(Probe)
        player.say(Echo(EPOCH, 0, b""))
        player.say(message)

    return play


def in_no_hurry(player: Player) -> None:
    player.turn()
    with contextlib.suppress(PeerLost):
        player.hear(Survey)


@pytest.mark.parametrize(
    "message",
    [
        Survey(EPOCH, 0),
        LinkReport(EPOCH, 1, "h", 1, (LINK,)),
        LinkReport(EPOCH, 2, "h", 1, (LINK,)),
        Echo(EPOCH, 3, b""),
        Partial(EPOCH, 1, 0, 0, 0, 0, 2, None),
        Shutdown(EPOCH),
    ],
    ids=lambda message: type(message).__name__,
)
def test_out_of_turn_message_is_misconduct(message: Message) -> None:
    with Linked(3) as linked:
        error = surveyed(linked, {1: in_no_hurry, 2: out_of_turn(message)})[0]
    assert isinstance(error, Misconduct)
    assert error.rank == 2


def test_node_death_in_its_turn_ends_the_survey() -> None:
    with Linked(3) as linked:

        def play(player: Player) -> None:
            player.turn()
            player.endpoint.close()
            linked.lose(2, "killed by SIGKILL")

        errors = surveyed(linked, {2: play})
    assert [str(error) for error in errors[:2]] == [
        "node 2 was lost during the links of node 2: killed by SIGKILL",
        "node 2 was lost during its turn in the survey of the links: killed by SIGKILL",
    ]
    assert all(isinstance(error, PeerLost) for error in errors[:2])


def mumbling(player: Player) -> None:
    player.turn()
    player.say(LinkReport(EPOCH, 1, "h", 1, (LINK,)))
    while True:
        with contextlib.suppress(Unreachable):
            player.endpoint.send(Echo(EPOCH, 999, b""), to=node_name(2), timeout_s=0.0)
        envelope = player.endpoint.recv(0.001)
        if envelope is not None and isinstance(envelope.message, Survey) and envelope.message.turn == 0:
            return


def test_unanswered_probes_leave_a_pair_unlinked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_survey, "_PAIR_S", 0.3)
    with Linked(3) as linked:
        facts, _, honest = surveyed(linked, {1: mumbling})
    assert honest is None
    assert isinstance(facts, NetworkFacts)
    assert facts.link(1, 2) is None
    assert facts.link(0, 2) is not None
