"""One epoch at the master, from its plan to its end. Its phases are the table PHASES: workers fetch what they lack
while it is PREPARING, nodes start and load while it is LAUNCHED."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from msgspec import structs

from tpiedge.clock import Clock
from tpiedge.errors import PeerLost, TpiedgeError
from tpiedge.launch.bootstrap import Timing
from tpiedge.master.assignments import Assignments, Served, collective_names
from tpiedge.master.blame import Failure, failure_of
from tpiedge.master.counters import WINDOW_S, Counted, CounterLog, Pace, RequestWatch, StepTimeline
from tpiedge.master.epoch import Epoch, EpochEvent, NodeState
from tpiedge.planner.carriage import Carriage
from tpiedge.sanitise import sanitised_line
from tpiedge.transport.keys import is_key
from tpiedge.wire.control import (
    AskStats,
    Carried,
    Compile,
    Compiled,
    Embedding,
    Failed,
    Finished,
    Generate,
    Halt,
    Halted,
    Loading,
    PromptScores,
    Ready,
    Resume,
    Stats,
    StepSpans,
    Token,
)
from tpiedge.wire.epochs import Launch, NodeEnded, Prepared, Preparing, Release, Spawned
from tpiedge.wire.fields import CollectiveChoice, Message
from tpiedge.wire.requests import GenerationRequest

_log = logging.getLogger(__name__)

#: Hashing what is on disk already, and building the engine, report no progress.
_STUCK_S = 300.0


class Phase(StrEnum):
    PREPARING = "preparing"
    PREPARED = "prepared"
    LAUNCHED = "launched"
    READY = "ready"
    ENDED = "ended"


class SessionEvent(StrEnum):
    PREPARED = "every worker has its part"
    LAUNCHED = "its nodes start"
    READY = "every node has loaded its weights"
    ENDED = "it fails, or another one takes its place"


PHASES: Final[Mapping[Phase, Mapping[SessionEvent, Phase]]] = {
    Phase.PREPARING: {SessionEvent.PREPARED: Phase.PREPARED, SessionEvent.ENDED: Phase.ENDED},
    Phase.PREPARED: {SessionEvent.LAUNCHED: Phase.LAUNCHED, SessionEvent.ENDED: Phase.ENDED},
    Phase.LAUNCHED: {SessionEvent.READY: Phase.READY, SessionEvent.ENDED: Phase.ENDED},
    Phase.READY: {SessionEvent.ENDED: Phase.ENDED},
    Phase.ENDED: {},
}
"""What each event does; one that has no line in a phase changes nothing."""


@dataclass
class _Preparation:
    """How far a worker is with its part. `done_bytes`: the most that it said it has fetched; `news`: when that grew;
    `fetching`: what it said last while it fetches."""

    news: float
    done_bytes: int = -1
    fetching: Preparing | None = None
    key: str = ""


@dataclass(eq=False)
class Session:
    """Not thread-safe; nothing blocks. `to_agent(message, machine)` and `to_node(message, rank)` send without waiting;
    `tell` gets the nodes' messages about requests."""

    number: int
    _plan: Assignments
    _served: Served
    _timing: Timing
    _clock: Clock
    _to_agent: Callable[[Message, str], None]
    _to_node: Callable[[Message, int], None]
    _tell: Callable[[Message], None]
    phase: Phase = Phase.PREPARING
    failure: Failure | None = None
    epoch: Epoch | None = None
    #: Rank 0's Ready, which names the collectives; None until it is ready.
    routing: Ready | None = None
    #: The epoch for which rank 0 was told to halt, 0 for none, and what it answered.
    halting: int = 0
    halted: Halted | None = None
    #: What all nodes did in the latest step that all recorded; for any thread. What each said last.
    timeline: StepTimeline | None = None
    _spans: dict[int, StepSpans] = field(default_factory=dict)
    #: Why the collective is not the one that the user chose; "" where it is.
    _overruled: str = ""
    #: The most bytes that each node said it has loaded, and when that last grew: what goes back and forth is no
    #: progress.
    _loaded: dict[int, float] = field(default_factory=dict)
    _moved: float = 0.0
    #: When the nodes were started, and since when all are ready.
    _launched: float = 0.0
    _ready: float = 0.0
    _answered: bool = False  # whether a request got on
    _counted: float = 0.0  # when the counters were asked for

    def __post_init__(self) -> None:
        self.assignments, self.step_s = self._plan.assignments, self._plan.step_s
        #: The ranks of the workers that take part, by name.
        self.ranks = {one.machine: rank for rank, one in enumerate(self.assignments) if one.machine}
        self._counters = [CounterLog() for _ in self.assignments]
        self._preparing = {machine: _Preparation(self._clock.now()) for machine in self.ranks}
        self._pace = Pace([one.ffn_s for one in self.assignments])
        # A node that waits for a stuck one gives up after stall_s, and its report says more: so this limit is longer.
        self._stuck_s = self._timing.stall_s + self._timing.timeout_s
        self._watch = RequestWatch()

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(self.ranks)

    @property
    def keys(self) -> Mapping[int, str]:
        """The public keys of the workers' nodes by rank, as far as they are prepared."""
        return {self.ranks[name]: one.key for name, one in self._preparing.items() if one.key}

    @property
    def fetching(self) -> Mapping[str, Preparing]:
        return {name: one.fetching for name, one in self._preparing.items() if one.fetching is not None}

    @property
    def breaches(self) -> Mapping[str, str]:
        """How each worker whose node broke the protocol did so."""
        breaches = self.epoch.breaches if self.epoch is not None else {}
        return {self.assignments[rank].machine: cause for rank, cause in breaches.items() if rank}

    @property
    def proven(self) -> bool:
        """Whether a request got on, or half a minute without one has passed."""
        return self.phase is Phase.READY and (self._answered or self.served_s >= 30.0)

    @property
    def served_s(self) -> float:
        """For how long every node has been ready; 0 where it is not so."""
        return 0.0 if self.phase is not Phase.READY else self._clock.now() - self._ready

    @property
    def start_s(self) -> float:
        """How long its nodes took to get ready; 0 where they are not yet."""
        return max(0.0, self._ready - self._launched)

    def progress(self, machine: str) -> str:
        """The state of the worker's preparation, in one word; "" for one without a part."""
        one = self._preparing.get(machine)
        if one is None:
            return ""
        return "fetching" if one.fetching is not None else "prepared" if one.key else "preparing"

    def late(self, patience_s: float, silence_s: float) -> set[str]:
        """The workers that will fetch for longer than `patience_s`, at their rate, or got no further for
        `silence_s`."""
        if self.phase is not Phase.PREPARING:
            return set()
        found = set(self._silent(silence_s))
        for name, one in self.fetching.items():
            if (one.total_bytes - one.done_bytes) / max(one.bytes_per_s, 1.0) > patience_s:
                found.add(name)
        return found

    def prepare(self) -> None:
        for machine, rank in self.ranks.items():
            self._preparing[machine].news = self._clock.now()
            self._to_agent(self._served.prepare(self.number, self.assignments, rank, self._timing), machine)
        self._look_prepared()

    def launch(self, root_key: str, overruled: str = "", carried: Carried | None = None) -> None:
        """Starts the nodes; `root_key` is the public key of rank 0, which the caller starts. `overruled` says why
        all-reduces must go by the star; "" if they need not. `carried`: what the nodes before left for these."""
        self._step(SessionEvent.LAUNCHED)
        self._moved = self._launched = self._clock.now()
        self._overruled = overruled
        served = replace(self._served, collective=self._collective)
        self.epoch = Epoch(
            self.number,
            self._clock,
            len(self.assignments),
            self._timing,
            lambda rank: served.assign(
                self.number, self.assignments, rank, {**self.keys, 0: root_key}, carried
            ),
            self._to_node,
            self._event,
        )
        for machine in self.ranks:
            self._to_agent(Launch(self.number), machine)

    def heard(self, machine: str, message: Preparing | Prepared | Spawned | NodeEnded) -> None:
        """Handles an agent's message about this epoch. Messages about other epochs are dropped."""
        rank = self.ranks.get(machine)
        if rank is None or message.epoch != self.number or self.phase is Phase.ENDED:
            return
        one = self._preparing[machine]
        match message:
            case Preparing(done_bytes=done) if not one.key:
                if done > one.done_bytes:
                    one.done_bytes, one.news = done, self._clock.now()
                one.fetching = message
            case Prepared(public_key=key) if not one.key:
                one.fetching = None
                if not is_key(key) or key in self.keys.values():
                    self._unfit(machine, rank, "the key of its node is none, or another node's")
                    return
                one.key = key
                self._look_prepared()
            case NodeEnded(cause=cause) if self.epoch is not None:
                self.epoch.ended(rank, cause)
            case NodeEnded(cause=cause):
                self._unfit(machine, rank, cause)

    def lose(self, machine: str, cause: str, *, intended: bool = False) -> None:
        """The machine is lost, and its node with it. `intended`: as in Failure."""
        rank = self.ranks.get(machine)
        if rank is None or self.phase is Phase.ENDED:
            return
        if self.epoch is None:
            self.fail(Failure(self._lost(rank, cause), machine_lost=True))
            return
        self.epoch.lose(rank, cause)
        if self.failure is not None:
            lost = Failure(self.failure.error, machine_lost=True, intended=intended)
            self.failure = replace(lost, disputed=self.failure.disputed)

    def ask(self, request: GenerationRequest) -> None:
        """Sends the request to rank 0, beside those that it has. Raises ProtocolError for a value that does not fit
        its field."""
        self._to_node(Generate(self.number, request), 0)
        self._watch.begin(request.id, self._clock.now())

    def compile(self, request: GenerationRequest, group: str) -> None:
        """Has rank 0 compile the grammar of the request, as of Compile. Raises ProtocolError as `ask` does."""
        self._to_node(Compile(self.number, request, group), 0)
        self._watch.begin(request.id, self._clock.now())

    def halt(self, following: int, what: Carriage) -> None:
        """Tells rank 0 to draw nothing more, and to leave what is carried to the epoch `following`."""
        self.halting, self.halted = following, None
        kept = tuple((one.start, one.stop) for one in what.kept)
        self._to_node(Halt(self.number, following, kept, what.stored, what.sent), 0)

    def resume(self) -> None:
        """Tells rank 0, which was told to halt, that nothing follows after all."""
        self.halting, self.halted = 0, None
        self._watch.advance(self._clock.now())
        self._to_node(Resume(self.number), 0)

    def fail(self, failure: Failure) -> None:
        """Ends the session with a failure. The first one is kept: it caused the others."""
        if self.failure is None:
            self.failure = failure
        self._step(SessionEvent.ENDED)

    def tick(self) -> None:
        """Looks for workers that live but do not get ready, and for stuck requests."""
        late = self._clock.now() - _STUCK_S
        if self.phase is Phase.LAUNCHED and self.epoch is not None and self._moved < late:
            stuck = next(member.rank for member in self.epoch.members if member.state is not NodeState.READY)
            self.epoch.lose(stuck, f"no progress in loading for {_STUCK_S:.0f} s")
        if self.phase is Phase.READY and self.epoch is not None and not self.halting:
            now = self._clock.now()
            self._watch.look(self.epoch.members, now)
            quiet_s = self._watch.quiet_s(now)
            if quiet_s > self._stuck_s:  # the other nodes wait for rank 0, or have nothing to do
                self.epoch.fail(0, f"alive but without progress in a request for {quiet_s:.0f} s")
            if self._watch.running and now - self._counted >= WINDOW_S / 2:
                self.ask_counters()
        for machine in self._silent(_STUCK_S) if self.phase is Phase.PREPARING else ():
            self._unfit(machine, self.ranks[machine], f"no progress for {_STUCK_S:.0f} s")

    def ask_counters(self, *, timeline: bool = False) -> None:
        """Asks every node for its counters, and all together for the `timeline` of a step; does not wait for the
        answers."""
        if self.phase is Phase.READY:
            self._counted = self._clock.now()
            for rank in range(len(self.assignments)):
                self._to_node(AskStats(self.number, timeline and rank == 0), rank)

    def counted(self, rank: int) -> Counted | None:
        """The counters of that node; None where it has not said any."""
        return self._counters[rank].counted(self._clock.now())

    def slowdowns(self, believed: Mapping[str, float]) -> Mapping[str, float]:
        """How many times slower than they measured workers turn out to compute, where that is not what is believed."""
        workers = {rank: self.assignments[rank] for rank in self.ranks.values()}
        known = {rank: believed.get(one.machine, 1.0) / one.slowdown for rank, one in workers.items()}
        counters = {
            rank: one.latest
            for rank in range(len(self.assignments))
            if (one := self.counted(rank)) is not None
        }
        found = self._pace.off(counters, known, self._clock.now())
        return {one.machine: one.slowdown * found[rank] for rank, one in workers.items() if rank in found}

    def end(self) -> None:
        """Tells every worker to end its node. Idempotent."""
        self._step(SessionEvent.ENDED)
        for machine in self.ranks:
            self._to_agent(Release(self.number), machine)

    def _event(self, event: EpochEvent) -> None:
        now = self._clock.now()
        match event:
            case TpiedgeError():
                if self.epoch is not None:
                    starting, stalled = (
                        self.phase is Phase.LAUNCHED,
                        self._watch.quiet_s(now) > self._stuck_s / 2,
                    )
                    linked = len(self.assignments) > 2 and self._collective != "star"
                    parts = self.assignments
                    self.fail(
                        failure_of(event, self.epoch, parts, linked, starting=starting, stalled=stalled)
                    )
                return
            case StepSpans():
                self._spans[event.rank] = event
                latest = tuple(self._spans[rank] for rank in sorted(self._spans))
                if len(latest) == len(self.assignments) and len({one.step for one in latest}) == 1:
                    self.timeline = StepTimeline(event.epoch, time.time(), latest)
                return
            case Loading() | Ready():
                self._loads(event)
            case Token() | PromptScores() | Embedding() if event.request in self._watch.running:
                self._watch.advance(now)
                self._answered = True
            case Halted():
                if event.following == self.halting:
                    self.halted = event
                return
            case Stats():
                self._counters[event.rank].take(event, now)
                if event.rank == 0:
                    self._watch.measured(event, now)
            case Compiled() | Finished() | Failed() if event.request in self._watch.running:
                self._watch.end(event.request, now)
                refused = isinstance(event, Failed) and event.kind in ("UserError", "GrammarRefused")
                self._answered |= refused or isinstance(event, Finished)
        self._tell(event)

    @property
    def _collective(self) -> CollectiveChoice:
        return "star" if self._overruled else self._served.collective

    def _loads(self, event: Loading | Ready) -> None:
        now = self._clock.now()
        done = math.inf if isinstance(event, Ready) else event.done_bytes
        if done > self._loaded.get(event.rank, -1):
            self._loaded[event.rank], self._moved = done, now
        if isinstance(event, Ready) and event.rank == 0:
            event = self.routing = structs.replace(event, why=self._overruled or event.why)
            wanted, found = self._served.collective, {event.collective, event.bulk_collective}
            if event.collective:  # a single node has no all-reduce
                level = logging.INFO if wanted == "auto" or found == {wanted} else logging.WARNING
                names = collective_names(event.collective, event.bulk_collective)
                _log.log(level, "all-reduces go by %s: %s", names, event.why or "as wanted")
        if self.phase is Phase.LAUNCHED and self.epoch is not None and self.epoch.all_ready:
            self._step(SessionEvent.READY)
            self._ready = now

    def _step(self, event: SessionEvent) -> None:
        self.phase = PHASES[self.phase].get(event, self.phase)

    def _silent(self, silence_s: float) -> list[str]:
        """The workers that are not prepared and got no further for so long."""
        since = self._clock.now() - silence_s
        return [name for name, one in self._preparing.items() if not one.key and one.news < since]

    def _unfit(self, machine: str, rank: int, cause: str) -> None:
        self.fail(Failure(self._lost(rank, cause), unfit=machine))

    def _lost(self, rank: int, cause: str) -> PeerLost:
        return PeerLost(rank, "its preparation", sanitised_line(cause), self.assignments[rank].host)

    def _look_prepared(self) -> None:
        if all(one.key for one in self._preparing.values()):
            self._step(SessionEvent.PREPARED)
