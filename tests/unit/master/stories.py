"""A master on a manual clock, with agents and nodes that are played: who says what when is the test's to decide."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from tests.fakes.clock import ManualClock
from tests.fakes.inprocess import InProcessHub
from tests.unit.master.players import FakeAgent, FakeNode, FakeRankZero, FakeRegistrar, offer
from tpiedge.errors import TpiedgeError
from tpiedge.master.assignments import Assignment, Assignments, Served
from tpiedge.master.journal import Paused, PendingAnswer
from tpiedge.master.master import Master
from tpiedge.master.roster import Machine
from tpiedge.master.session_manager import RankZero
from tpiedge.master.status import NodeStatus
from tpiedge.pack.share import Share
from tpiedge.planner.capacity import SpareReason
from tpiedge.planner.needs import LayerShape
from tpiedge.transport.admission import Admission
from tpiedge.transport.endpoint import CONTROL
from tpiedge.transport.keys import CurveKeys
from tpiedge.units import counted
from tpiedge.wire.control import Finished, Token
from tpiedge.wire.requests import GenerationRequest

SERVED = Served(Path("/pack"), "pack-1", "f32", 64, 64)
SHAPE = LayerShape(24, 24, 24, 2)
_BEAT_S = 0.1


def request(name: str = "r-1") -> GenerationRequest:
    return GenerationRequest(name, (1, 2, 3), 4)


def assignments_of(*machines: str) -> tuple[Assignment, ...]:
    return tuple(
        Assignment(
            machine,
            SHAPE.share(Share(rank, rank + 1), Share(rank, rank + 1)),
            threads=2,
            weight_bytes=10,
            why="equal",
            host="pi" if machine else "",
        )
        for rank, machine in enumerate(("", *machines))
    )


class Story:
    def __init__(self, served: Served = SERVED, queue_limit: int = 4) -> None:
        self.clock = ManualClock()
        self.registrar = FakeRegistrar()
        self.agents: dict[str, FakeAgent] = {}
        self.nodes: dict[tuple[int, int], FakeNode] = {}
        self.loads = True
        self.min_workers = 0
        self.planned: list[tuple[str, ...]] = []
        self.planned_for_losses: list[tuple[str, ...]] = []
        self.plan: Callable[[tuple[Machine, ...]], tuple[Assignment, ...] | str] = self._everyone
        self.step_s: Callable[[tuple[Machine, ...]], float] = lambda _machines: 0.0
        self.spare: dict[str, SpareReason] = {}  # why the plan has no part for a machine
        self.begin_master(served, queue_limit)

    def begin_master(self, served: Served, queue_limit: int = 4, known: Sequence[str] = ()) -> None:
        self.hub = InProcessHub("master", CONTROL, Admission({}))
        self.rank_zero = FakeRankZero()
        self.master = Master(
            self.hub,
            self.clock,
            served,
            self._arranged,
            cast(RankZero, self.rank_zero),
            self.registrar,
            queue_limit=queue_limit,
            known=known,
        )

    def _arranged(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments:
        planned = len(self.planned)
        try:
            found = self.plan(machines)
        finally:
            if not serving and len(self.members()) > 1:  # for a possible loss
                self.planned_for_losses += self.planned[planned:]
                del self.planned[planned:]
        if isinstance(found, str):
            return Assignments((), self.spare, reason=found)
        return Assignments(found, self.spare, self.step_s(machines))

    def _everyone(self, machines: tuple[Machine, ...]) -> tuple[Assignment, ...] | str:
        self.planned.append(tuple(machine.name for machine in machines))
        if len(machines) < self.min_workers:
            return f"{len(machines)} of {counted(self.min_workers, 'worker')} here"
        return assignments_of(*(machine.name for machine in machines))

    def join(self, name: str) -> FakeAgent:
        self.hub.admission.admit(CurveKeys.generate().public, name)
        self.registrar.members.add(name)
        agent = self.agents[name] = FakeAgent(self, name)
        agent.say(offer())
        return agent

    def freeze(self, name: str = "w-1", rank: int = 1) -> None:
        self.agents[name].frozen = self.node(rank, self.epoch).frozen = True

    def node(self, rank: int, epoch: int) -> FakeNode:
        if (rank, epoch) not in self.nodes:
            self.nodes[rank, epoch] = FakeNode(self, rank, epoch)
        return self.nodes[rank, epoch]

    def turn(self, rounds: int = 8) -> None:
        for _ in range(rounds):
            self.hub.wake()
            self.master.turn()
            epoch = self.rank_zero.epoch
            if epoch is not None and not self.node(0, epoch).joined and self.rank_zero.cause is None:
                self.node(0, epoch).hello()
            for player in [*self.agents.values(), *self.nodes.values()]:
                player.listen()

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / _BEAT_S)):
            self.clock.advance(_BEAT_S)
            for agent in self.agents.values():
                agent.pulse()
            for node in self.nodes.values():
                node.beat()
            self.turn(3)

    def settle(self) -> None:
        self.wait(1.0)
        self.turn()

    def answer(self, name: str = "r-1") -> None:
        answering = self.asked(name)
        self.finish(name)
        assert isinstance(outcome(answering), list)

    def wait_for(self, condition: Callable[[], bool], limit_s: float = 60.0) -> None:
        for _ in range(round(limit_s / _BEAT_S)):
            if condition():
                return
            self.wait(_BEAT_S)
        raise AssertionError(f"not within {limit_s} s: {self.master.status}")

    def worker(self, name: str = "w-1") -> NodeStatus:
        (found,) = [node for node in self.master.status.nodes if node.name == name]
        return found

    def submit(self, name: str = "r-1") -> PendingAnswer:
        return self.master.submit(request(name))

    def asked(self, name: str = "r-1") -> PendingAnswer:
        answering = self.submit(name)
        self.turn()
        return answering

    def finish(self, name: str = "r-1") -> None:
        self.root.finish(name)
        self.turn()

    @property
    def epoch(self) -> int:
        return self.master.status.epoch

    @property
    def ready(self) -> bool:
        return self.master.status.ready

    @property
    def root(self) -> FakeNode:
        return self.nodes[0, self.epoch]

    def members(self) -> tuple[str, ...]:
        assigned = [node for node in self.master.status.nodes if node.rank is not None]
        return tuple(node.name for node in sorted(assigned, key=lambda node: node.rank or 0))


def outcome(answering: PendingAnswer) -> list[Token | Finished] | TpiedgeError:
    try:
        return list(answering.events())  # type: ignore[arg-type]
    except TpiedgeError as error:
        return error


def failure(answering: PendingAnswer) -> TpiedgeError:
    found = outcome(answering)
    assert isinstance(found, TpiedgeError)
    return found


def read(answering: PendingAnswer) -> list[object]:
    found: list[object] = []
    while not answering._events.empty():
        found.append(answering._events.get_nowait())
    return found


def paused(answering: PendingAnswer) -> str:
    """Returns why the answer paused first, after the events read before. Raises queue.Empty without a pause."""
    while True:
        event = answering._events.get_nowait()
        if isinstance(event, Paused):
            return event.why


def two_machines(story: Story) -> FakeAgent:
    agent = story.join("w-1")
    story.settle()
    assert story.ready
    assert story.members() == ("master", "w-1")
    return agent
