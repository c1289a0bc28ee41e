"""One epoch at the master, from its plan to its end: preparing, prepared, launched, ready, ended."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Final

from msgspec import structs

from tpiedge.clock import Clock
from tpiedge.errors import PeerLost, TpiedgeError
from tpiedge.launch.bootstrap import Timing, control_name
from tpiedge.master.assignments import Assignments, Served, collective_names
from tpiedge.master.blame import Failure, failure_of
from tpiedge.master.counters import WINDOW_S, WINDOWS, Counted, CounterLog, RequestWatch, Speeds, StepTimeline
from tpiedge.master.epoch import Epoch, EpochEvent, NodeState
from tpiedge.planner.kv_transfer import KVMoves
from tpiedge.sanitise import sanitised_line
from tpiedge.transport.keys import is_key
from tpiedge.wire import control
from tpiedge.wire.epochs import Launch, NodeEnded, Prepared, Preparing, Release, Spawned
from tpiedge.wire.fields import CollectiveChoice, Message
from tpiedge.wire.requests import GenerationRequest

_log = logging.getLogger(__name__)

AgentReport = Preparing | Prepared | Spawned | NodeEnded

#: Hashing files that are on disk already, and building the engine, report no progress.
_STUCK_S = 300.0


class Phase(StrEnum):
    PREPARING = "preparing"
    PREPARED = "prepared"
    LAUNCHED = "launched"
    READY = "ready"
    ENDED = "ended"


_ENDS: Final = {Phase.ENDED: "it fails, or another one takes its place"}
PHASES: Final[Mapping[Phase, Mapping[Phase, str]]] = {
    Phase.PREPARING: {Phase.PREPARED: "every worker has its part", **_ENDS},
    Phase.PREPARED: {Phase.LAUNCHED: "its nodes start", **_ENDS},
    Phase.LAUNCHED: {Phase.READY: "every node has loaded its weights", **_ENDS},
    Phase.READY: _ENDS,
    Phase.ENDED: {},
}
"""For each phase the phases that may follow, and why."""


@dataclass
class _Preparation:
    """A worker's progress with its part. `news`: when `done_bytes` last grew."""

    news: float
    done_bytes: int = -1
    fetching: Preparing | None = None
    key: str = ""


@dataclass(eq=False)
class Session:
    """Belongs to one thread; nothing blocks. `send(message, peer)` does not wait. `notify` gets rank 0's messages about
    requests."""

    number: int
    _plan: Assignments
    served: Served
    _timing: Timing
    _clock: Clock
    _send: Callable[[Message, str], None]
    _notify: Callable[[Message], None]
    phase: Phase = Phase.PREPARING
    failure: Failure | None = None
    epoch: Epoch | None = None
    routing: control.Ready | None = None  # rank 0's, which names the collectives
    halting: int = 0  # the epoch for which rank 0 was told to halt
    halted: control.Halted | None = None
    timeline: StepTimeline | None = None  # the latest step that all nodes recorded; for any thread
    _spans: dict[int, control.StepSpans] = field(default_factory=dict)
    _overruled: str = ""  # why the collective is not the one that the user chose
    _loaded: dict[int, float] = field(default_factory=dict)  # the most bytes that each rank reported
    _moved: float = 0.0  # when one of them grew
    _launched: float = 0.0
    _ready: float = 0.0  # when all nodes were ready
    _answered: bool = False  # whether a request made progress
    _stats_asked: float = 0.0  # when the counters were asked for

    def __post_init__(self) -> None:
        self.assignments, self.step_s = self._plan.assignments, self._plan.step_s
        self.ranks = {one.machine: rank for rank, one in enumerate(self.assignments) if one.machine}
        self.machines = tuple(self.ranks)
        self._counters = [CounterLog() for _ in self.assignments]
        self._begun = self._clock.now()
        self._preparing = {machine: _Preparation(self._begun) for machine in self.ranks}
        self._speeds = Speeds([one.ffn_s / one.slowdown for one in self.assignments])
        # Longer than stall_s, after which a node that waits for a stuck one gives up: its report says more.
        self._stuck_s = self._timing.stall_s + self._timing.timeout_s
        self._watch = RequestWatch()

    @property
    def keys(self) -> Mapping[int, str]:
        """Public keys of the prepared workers' nodes, by rank."""
        return {self.ranks[name]: one.key for name, one in self._preparing.items() if one.key}

    @property
    def fetching(self) -> Mapping[str, Preparing]:
        return {name: one.fetching for name, one in self._preparing.items() if one.fetching is not None}

    @property
    def breaches(self) -> Mapping[str, str]:
        members = self.epoch.members if self.epoch is not None else ()
        return {self.assignments[one.rank].machine: one.breach for one in members if one.rank and one.breach}

    @property
    def linked(self) -> bool:
        """Whether workers have links with each other."""
        return len(self.assignments) > 2 and self._collective != "star"

    @property
    def proven(self) -> bool:
        return self.phase is Phase.READY and (self._answered or self.served_s >= 30.0)

    @property
    def served_s(self) -> float:
        """Seconds since every node became ready; 0 before."""
        return 0.0 if self.phase is not Phase.READY else self._clock.now() - self._ready

    @property
    def start_s(self) -> float:
        """Seconds that the nodes took to get ready; 0 before."""
        return max(0.0, self._ready - self._launched)

    def progress(self, machine: str) -> str:
        one = self._preparing[machine]
        return "fetching" if one.fetching is not None else "prepared" if one.key else "preparing"

    def overdue(self) -> set[str]:
        """Returns workers without progress for 20 s. Also returns workers whose fetching needs over 10 s more."""
        if self.phase is not Phase.PREPARING or self._clock.now() - self._begun < 2.0:
            return set()
        left_s = {
            name: (one.total_bytes - one.done_bytes) / max(one.bytes_per_s, 1.0)
            for name, one in self.fetching.items()
        }
        return {*self._silent(20.0), *(name for name, seconds in left_s.items() if seconds > 10.0)}

    def prepare(self) -> None:
        for machine, rank in self.ranks.items():
            self._send(self.served.prepare(self.number, self._plan, rank, self._timing), machine)
        self._look_prepared()

    def launch(self, root_key: str, overruled: str = "", snapshot: control.KVSnapshot | None = None) -> None:
        """Starts the workers' nodes. `root_key`: rank 0's public key. `overruled`: why all-reduces use the star, or "".
        `snapshot`: the previous epoch's KV pages."""
        self._reach(Phase.LAUNCHED)
        self._moved = self._launched = self._clock.now()
        self._overruled = overruled
        served, keys = replace(self.served, collective=self._collective), {0: root_key, **self.keys}
        assign = partial(served.assign, self.number, self._plan, keys=keys, snapshot=snapshot)
        nodes = len(self.assignments)
        self.epoch = Epoch(self.number, self._clock, nodes, self._timing, assign, self._to_node, self._event)
        for machine in self.ranks:
            self._send(Launch(self.number), machine)

    def handle_report(self, machine: str, message: AgentReport) -> None:
        """Handles an agent's message; messages about other epochs are dropped."""
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

    def drop_machine(self, machine: str, cause: str, *, intended: bool = False) -> None:
        """Drops a lost machine with its node. `intended`: see Failure."""
        rank = self.ranks.get(machine)
        if rank is None or self.phase is Phase.ENDED:
            return
        if self.epoch is None:
            self.fail(Failure(self._lost(rank, cause)))
        else:
            self.epoch.mark_lost(rank, cause)
        if self.failure is not None:
            self.failure = replace(
                self.failure, worker=None, died=False, machine_lost=True, intended=intended
            )

    def generate(self, request: GenerationRequest) -> None:
        """Sends the request to rank 0. Raises ProtocolError."""
        self._to_node(control.Generate(self.number, request), 0)
        self._watch.add(request.id, self._clock.now())

    def compile(self, request: GenerationRequest, group: str) -> None:
        """Sends the request's grammar to rank 0. `group`: see Compiling.start. Raises ProtocolError."""
        self._to_node(control.Compile(self.number, request, group), 0)
        self._watch.add(request.id, self._clock.now())

    def halt(self, following: int, what: KVMoves) -> None:
        """Stops rank 0, whose nodes park KV pages for the epoch `following`."""
        self.halting, self.halted = following, None
        self._to_node(control.Halt(self.number, following, what.gathered), 0)

    def resume(self) -> None:
        self.halting, self.halted = 0, None
        self._watch.advance(self._clock.now())
        self._to_node(control.Resume(self.number), 0)

    def fail(self, failure: Failure) -> None:
        """Ends the session. Keeps the first failure, because it caused the others."""
        self.failure = self.failure or failure
        self._reach(Phase.ENDED)

    def tick(self) -> None:
        """Marks as lost the nodes that are alive but make no progress."""
        now, epoch = self._clock.now(), self.epoch
        if self.phase is Phase.PREPARING:
            for machine in self._silent(_STUCK_S):
                self._unfit(machine, self.ranks[machine], f"no progress for {_STUCK_S:.0f} s")
        elif self.phase is Phase.LAUNCHED and epoch is not None and now - self._moved > _STUCK_S:
            stuck = next(member.rank for member in epoch.members if member.state is not NodeState.READY)
            epoch.mark_lost(stuck, f"no progress in loading for {_STUCK_S:.0f} s")
        elif self.phase is Phase.READY and epoch is not None and not self.halting:
            self._watch.look(epoch.members, now)
            quiet_s = self._watch.quiet_s(now)
            if quiet_s > self._stuck_s:  # the other nodes wait for rank 0, or have nothing to do
                epoch.fail(0, f"alive but without progress in a request for {quiet_s:.0f} s")
            if self._watch.running and now - self._stats_asked >= WINDOW_S / 2:
                self.ask_counters()

    def ask_counters(self, *, timeline: bool = False) -> None:
        """Asks every node for counters. `timeline`: also for one step's spans."""
        if self.phase is Phase.READY:
            self._stats_asked = self._clock.now()
            for rank in range(len(self.assignments)):
                self._to_node(control.AskStats(self.number, timeline and rank == 0), rank)

    def counted(self, rank: int) -> Counted | None:
        return self._counters[rank].counted(self._clock.now())

    def slowdowns(self) -> Mapping[str, Sequence[float]]:
        """Measures slowdowns (see Speeds). Returns the last WINDOWS slowdowns of each worker, or () for a worker with
        fewer slowdowns. Call this method every heartbeat."""
        counted = [self.counted(rank) for rank in range(len(self.assignments))]
        latest = {rank: one.latest for rank, one in enumerate(counted) if one is not None}
        self._speeds.update(latest, self._clock.now())
        found = self._speeds.slowdowns
        return {one: found[rank] if len(found[rank]) == WINDOWS else () for one, rank in self.ranks.items()}

    def end(self) -> None:
        """Tells every worker to end its node. Idempotent."""
        self._reach(Phase.ENDED)
        for machine in self.ranks:
            self._send(Release(self.number), machine)

    def _event(self, event: EpochEvent) -> None:
        now = self._clock.now()
        match event:
            case TpiedgeError():
                if self.epoch is not None:
                    parts, stalled = self.assignments, self._watch.quiet_s(now) > self._stuck_s / 2
                    self.fail(failure_of(event, self.epoch, parts, linked=self.linked, stalled=stalled))
                return
            case control.StepSpans():
                self._spans[event.rank] = event
                latest = tuple(self._spans[rank] for rank in sorted(self._spans))
                if len(latest) == len(self.assignments) and len({one.step for one in latest}) == 1:
                    self.timeline = StepTimeline(event.epoch, time.time(), latest)
                return
            case control.Loading() | control.Ready():
                self._loads(event, now)
            case control.Token() | control.PromptScores() | control.Embedding() if (
                event.request in self._watch.running
            ):
                self._watch.advance(now)
                self._answered = True
            case control.Halted():
                if event.following == self.halting:
                    self.halted = event
                return
            case control.Stats():
                self._counters[event.rank].add(event, now)
                if event.rank == 0:
                    self._watch.measured(event, now)
            case control.Compiled() | control.Finished() | control.Failed() if (
                event.request in self._watch.running
            ):
                self._watch.remove(event.request, now)
                refused = isinstance(event, control.Failed) and event.kind in ("UserError", "GrammarRefused")
                self._answered |= refused or isinstance(event, control.Finished)
        self._notify(event)

    @property
    def _collective(self) -> CollectiveChoice:
        return "star" if self._overruled else self.served.collective

    def _loads(self, event: control.Loading | control.Ready, now: float) -> None:
        done = math.inf if isinstance(event, control.Ready) else event.done_bytes
        if done > self._loaded.get(event.rank, -1):  # a number that goes down and up again is no progress
            self._loaded[event.rank], self._moved = done, now
        if isinstance(event, control.Ready) and event.rank == 0:
            event = self.routing = structs.replace(event, why=self._overruled or event.why)
            wanted, found = self.served.collective, {event.collective, event.bulk_collective}
            if event.collective:  # a single node has no all-reduce
                level = logging.INFO if wanted == "auto" or found == {wanted} else logging.WARNING
                names = collective_names(event.collective, event.bulk_collective)
                _log.log(level, "all-reduces go by %s: %s", names, event.why or "as wanted")
        if self.phase is Phase.LAUNCHED and self.epoch is not None and self.epoch.all_ready:
            self._reach(Phase.READY)
            self._ready = now

    def _reach(self, phase: Phase) -> None:
        if phase in PHASES[self.phase]:
            self.phase = phase

    def _to_node(self, message: Message, rank: int) -> None:
        self._send(message, control_name(rank, self.number))

    def _silent(self, silence_s: float) -> list[str]:
        since = self._clock.now() - silence_s
        return [name for name, one in self._preparing.items() if not one.key and one.news < since]

    def _unfit(self, machine: str, rank: int, cause: str) -> None:
        self.fail(Failure(self._lost(rank, cause), machine, "unfit"))

    def _lost(self, rank: int, cause: str) -> PeerLost:
        return PeerLost(rank, "its preparation", sanitised_line(cause), self.assignments[rank].host)

    def _look_prepared(self) -> None:
        if all(one.key for one in self._preparing.values()):
            self._reach(Phase.PREPARED)
