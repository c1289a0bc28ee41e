"""A master on a manual clock, with agents and nodes that are played: who says what when is the test's to decide."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

from tpiedge.nodes.desk import Answering
from tpiedge.nodes.master import Master
from tpiedge.nodes.rank_zero import RankZero
from tpiedge.nodes.roster import Machine
from tpiedge.nodes.session import Arrangement, Seat, Served, node_name
from tpiedge.pack.share import NodeShare, Share
from tpiedge.testing.clock import ManualClock
from tpiedge.transport.admission import Admission
from tpiedge.transport.framing import CONTROL
from tpiedge.transport.inprocess import InProcessHub, InProcessSpoke
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.control import (
    Assign,
    Failed,
    Finished,
    Generate,
    Heartbeat,
    Hello,
    Listening,
    Ready,
    Shutdown,
    Token,
)
from tpiedge.wire.epochs import (
    AgentPulse,
    AskOffer,
    Capacity,
    Echo,
    Launch,
    NodeEnded,
    Offer,
    Prepare,
    Prepared,
    Preparing,
    Probe,
    Release,
    Spawned,
)
from tpiedge.wire.messages import PROTOCOL, Message
from tpiedge.wire.requests import GenerationRequest

__all__ = [
    "SERVED",
    "FakeAgent",
    "FakeDoor",
    "FakeNode",
    "FakeRankZero",
    "Story",
    "offer",
    "request",
    "seats_of",
]

SERVED = Served(Path("/pack"), "pack-1", "f32", 64)
_BEAT_S = 0.1


def offer(name: str = "w-1", nonce: int = 1, memory_bytes: int = 1 << 30, threads: int = 2) -> Offer:
    speed = Capacity(threads, 1e9, 1e10, 1e10)
    return Offer(0, name, "pi", "0", PROTOCOL, nonce, "cpu", "avx2", threads, memory_bytes, 1, speed, 0.0, ())


def request(name: str = "r-1") -> GenerationRequest:
    return GenerationRequest(name, (1, 2, 3), 4)


def seats_of(*machines: str) -> tuple[Seat, ...]:
    """Equal shares for the master and `machines`."""
    return tuple(
        Seat(machine, NodeShare(Share(rank, rank + 1), Share(rank, rank + 1)), 2, 10, "equal")
        for rank, machine in enumerate(("", *machines))
    )


class FakeRankZero:
    """Remembers what it was told."""

    threads = 2
    pid = 7

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.epoch: int | None = None
        self.cause: str | None = None

    def warm(self) -> None:
        self.calls.append("warm")

    def start(self, epoch: int, keys: CurveKeys) -> None:
        self.calls.append(f"start {epoch}")
        self.epoch, self.cause = epoch, None

    def exit_cause(self) -> str | None:
        return self.cause if self.epoch is not None else None

    def stop(self, grace_s: float = 0.0) -> None:
        self.calls.append("stop")
        self.epoch = None

    def close(self) -> None:
        self.calls.append("close")
        self.epoch = None


class FakeDoor:
    """Members are those who were admitted by hand."""

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.said: list[tuple[str, Message]] = []

    def heard(self, peer: str, message: Message, now: float) -> None:
        self.said.append((peer, message))

    def is_member(self, peer: str) -> bool:
        return peer in self.members

    def tick(self, now: float) -> None:
        return


class _Player:
    """One end of a link to the master; `heard` is everything that came, oldest first."""

    def __init__(self, spoke: InProcessSpoke) -> None:
        self.spoke = spoke
        self.heard: list[Message] = []
        self.frozen = False

    def listen(self) -> None:
        while not self.frozen and (envelope := self.spoke.recv(0.0)) is not None:
            self.heard.append(envelope.message)
            self.answer(envelope.message)

    def answer(self, message: Message) -> None:
        raise NotImplementedError

    def say(self, message: Message) -> None:
        self.spoke.send(message)

    def count(self, kind: type[Message]) -> int:
        return sum(isinstance(message, kind) for message in self.heard)


class FakeAgent(_Player):
    """Does what an agent does: `prepares` and `launches` say whether by itself."""

    def __init__(self, story: "Story", name: str) -> None:
        super().__init__(story.hub.spoke(name))
        self.name = name
        self.story = story
        self.prepares = True
        self.launches = True
        self.offers = True
        self.order: Prepare | None = None
        self.key = CurveKeys.generate().public

    def pulse(self) -> None:
        if not self.frozen:
            self.say(AgentPulse(0, 0))

    def answer(self, message: Message) -> None:
        match message:
            case AskOffer() if self.offers:
                self.say(offer(self.name))
            case Probe(number=number, answer_bytes=count):
                self.say(Echo(0, number, bytes(count)))
            case Prepare():
                self.order, self.key = message, CurveKeys.generate().public
                if self.prepares:
                    self.prepared()
            case Launch(epoch=epoch) if self.order is not None and self.launches:
                self.say(Spawned(epoch, self.order.rank, 1))
                self.story.node(self.order.rank, epoch).hello()

    def preparing(self, done: int = 1) -> None:
        assert self.order is not None
        self.say(Preparing(self.order.epoch, done, 10, 1.0))

    def prepared(self, key: str | None = None) -> None:
        assert self.order is not None
        self.say(Prepared(self.order.epoch, self.key if key is None else key, 0))

    def failed(self, cause: str = "the disk is full") -> None:
        assert self.order is not None
        self.say(NodeEnded(self.order.epoch, "DiskFull", cause))

    @property
    def released(self) -> list[int]:
        return [message.epoch for message in self.heard if isinstance(message, Release)]


class FakeNode(_Player):
    """Joins, loads (where it `loads`), beats, and leaves requests to the test."""

    def __init__(self, story: "Story", rank: int, epoch: int) -> None:
        super().__init__(story.hub.spoke(node_name(rank, epoch)))
        self.rank, self.epoch = rank, epoch
        self.loads = story.loads
        self.joined = False

    def hello(self) -> None:
        self.joined = True
        self.say(Hello(0, self.rank, 1, PROTOCOL, "0", 2, "cpu"))

    def beat(self) -> None:
        if self.joined and not self.frozen:
            self.say(Heartbeat(self.epoch, self.rank, 0, 0, 0))

    def answer(self, message: Message) -> None:
        match message:
            case Assign():
                if self.rank == 0:
                    self.say(Listening(self.epoch, 0, "tcp://127.0.0.1:7071"))
                if self.loads:
                    self.ready()
            case Shutdown():
                self.frozen = True

    def ready(self) -> None:
        self.say(Ready(self.epoch, self.rank, 1, 0.1))

    @property
    def asked(self) -> list[str]:
        """Ids of the requests that it got."""
        return [message.request.id for message in self.heard if isinstance(message, Generate)]

    def token(self, name: str = "r-1", index: int = 0) -> None:
        self.say(Token(self.epoch, name, index, 5, ()))

    def finish(self, name: str = "r-1", reason: str = "stop") -> None:
        self.say(Finished(self.epoch, name, reason, 3, 1, 0.1, 0.1))  # type: ignore[arg-type]

    def fail(self, kind: str, message: str, name: str = "") -> None:
        self.say(Failed(self.epoch, self.rank, name, kind, message))


class Story:
    """The master's turns are taken by the test: no thread, no waiting."""

    def __init__(self, queue_limit: int = 4) -> None:
        self.clock = ManualClock()
        self.hub = InProcessHub("master", CONTROL, Admission({}))
        self.rank_zero = FakeRankZero()
        self.door = FakeDoor()
        self.agents: dict[str, FakeAgent] = {}
        self.nodes: dict[tuple[int, int], FakeNode] = {}
        self.loads = True
        self.min_workers = 0
        self.planned: list[tuple[str, ...]] = []
        self.plan: Callable[[tuple[Machine, ...]], tuple[Seat, ...] | str] = self._everyone
        self.master = Master(
            self.hub,
            self.clock,
            SERVED,
            self._arranged,
            cast(RankZero, self.rank_zero),
            self.door,
            queue_limit=queue_limit,
        )

    def _arranged(self, machines: tuple[Machine, ...], _serving: tuple[str, ...]) -> Arrangement | str:
        found = self.plan(machines)
        return found if isinstance(found, str) else Arrangement(found)

    def _everyone(self, machines: tuple[Machine, ...]) -> tuple[Seat, ...] | str:
        self.planned.append(tuple(machine.name for machine in machines))
        if len(machines) < self.min_workers:
            return f"{len(machines)} of {self.min_workers} workers are here"
        return seats_of(*(machine.name for machine in machines))

    def join(self, name: str) -> FakeAgent:
        """A member connects and makes its offer."""
        self.hub.admission.admit(CurveKeys.generate().public, name)
        self.door.members.add(name)
        agent = self.agents[name] = FakeAgent(self, name)
        agent.say(offer(name))
        return agent

    def node(self, rank: int, epoch: int) -> FakeNode:
        if (rank, epoch) not in self.nodes:
            self.nodes[rank, epoch] = FakeNode(self, rank, epoch)
        return self.nodes[rank, epoch]

    def turn(self, rounds: int = 8) -> None:
        """Let everybody say and hear until nothing is left, without time passing."""
        for _ in range(rounds):
            self.hub.wake()
            self.master.turn()
            epoch = self.rank_zero.epoch
            if epoch is not None and not self.node(0, epoch).joined and self.rank_zero.cause is None:
                self.node(0, epoch).hello()
            for player in [*self.agents.values(), *self.nodes.values()]:
                player.listen()

    def wait(self, seconds: float) -> None:
        """Time passes, and whoever is not frozen shows that it lives."""
        for _ in range(round(seconds / _BEAT_S)):
            self.clock.advance(_BEAT_S)
            for agent in self.agents.values():
                agent.pulse()
            for node in self.nodes.values():
                node.beat()
            self.turn(3)

    def settle(self) -> None:
        """As long as joining, planning, preparing and loading take."""
        self.wait(1.0)
        self.turn()

    def submit(self, name: str = "r-1") -> Answering:
        return self.master.submit(request(name))

    @property
    def epoch(self) -> int:
        return self.master.status.epoch

    @property
    def ready(self) -> bool:
        return self.master.status.ready

    @property
    def root(self) -> FakeNode:
        """Rank 0 of the epoch that is served."""
        return self.nodes[0, self.epoch]

    def members(self) -> tuple[str, ...]:
        """Names of the machines of the serving plan, in rank order."""
        seated = [node for node in self.master.status.nodes if node.rank is not None]
        return tuple(node.name for node in sorted(seated, key=lambda node: node.rank or 0))
