"""One epoch at the master, from its plan to its end.

Phases: PREPARING (the workers fetch what they lack) -> PREPARED -> LAUNCHED (the nodes start and load) -> READY, and
ENDED from anywhere. A session ends by itself only over a loss or a failure; it never ends twice.
"""

import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum

from tpiedge.clock import Clock
from tpiedge.errors import PeerLost, TpiedgeError
from tpiedge.nodes.chosen import log_chosen
from tpiedge.nodes.epoch import Epoch, Event
from tpiedge.nodes.hearsay import hearsay
from tpiedge.nodes.membership import Membership, State
from tpiedge.nodes.seats import Fetching, Seat, Served
from tpiedge.nodes.timing import Timing
from tpiedge.nodes.verdict import first_lost, judge, with_host
from tpiedge.nodes.watch import RequestWatch
from tpiedge.transport.keys import is_key
from tpiedge.wire.control import (
    AskStats,
    Failed,
    Finished,
    Generate,
    Loading,
    PromptScores,
    Ready,
    Stats,
    Token,
)
from tpiedge.wire.epochs import Launch, NodeEnded, Prepared, Preparing, Release, Spawned
from tpiedge.wire.messages import Message
from tpiedge.wire.requests import GenerationRequest

__all__ = ["Phase", "Session", "node_name"]

#: Hashing what is on disk already brings no news, nor does building what computes.
_STUCK_S = 300.0
#: Who has served for so long without an answer to give has proven itself as well.
_PROVEN_S = 30.0


class Phase(StrEnum):
    PREPARING = "preparing"
    PREPARED = "prepared"
    LAUNCHED = "launched"
    READY = "ready"
    ENDED = "ended"


def node_name(rank: int, epoch: int) -> str:
    """The name of a node on the control plane; an earlier epoch's node has another one."""
    return f"node-{rank}.{epoch}"


class Session:
    """Not thread-safe. `to_agent(message, machine)` and `to_node(message, rank)` send without waiting; `tell` gets
    what the nodes say of requests."""

    def __init__(
        self,
        number: int,
        seats: tuple[Seat, ...],
        served: Served,
        timing: Timing,
        clock: Clock,
        to_agent: Callable[[Message, str], None],
        to_node: Callable[[Message, int], None],
        tell: Callable[[Message], None],
    ) -> None:
        self.number = number
        self.seats = seats
        self.phase = Phase.PREPARING
        self.failure: TpiedgeError | None = None
        #: The worker that could not prepare its part, or whose node failed before it was ready.
        self.culprit: str | None = None
        #: Whether it ended because a machine went; otherwise the worker whose node failed by itself, if one did.
        self.deserted = False
        self.fallen: str | None = None
        #: Where nobody can tell which of two workers is to blame: what ended it, in words.
        self.quarrel = ""
        self.fetching: dict[str, Fetching] = {}
        self.epoch: Epoch | None = None
        #: What rank 0 said of the way that all-reduces go, once it is ready.
        self.routing: Ready | None = None
        #: What each node said last of what it has done.
        self.counters: dict[int, Stats] = {}
        self._served = served
        #: What the nodes are told, and why where that is not what the user wants.
        self._collective, self._overruled = served.collective, ""
        self._timing = timing
        self._clock = clock
        self._to_agent = to_agent
        self._to_node = to_node
        self._tell = tell
        self._ranks = {seat.machine: rank for rank, seat in enumerate(seats) if seat.machine}
        self._keys: dict[int, str] = {}
        #: When each worker last said something new of its preparation.
        self._news: dict[str, float] = {}
        #: What each node last said of its loading, and when any of them said something new.
        self._loading: dict[int, Loading | Ready] = {}
        self._moved = 0.0
        #: Since when every node is ready, and whether rank 0 has ended a request as it should.
        self._ready = 0.0
        self._answered = False
        # A node that waits for a stuck one gives up after stall_s, and its word says more: it is heard first.
        self._watch = RequestWatch(timing.stall_s + timing.timeout_s)

    @property
    def machines(self) -> tuple[str, ...]:
        """The workers that take part."""
        return tuple(self._ranks)

    @property
    def keys(self) -> Mapping[int, str]:
        """The public keys of the workers' nodes by rank, as far as they are prepared."""
        return self._keys

    @property
    def offences(self) -> Mapping[str, str]:
        """The workers whose nodes broke the protocol, and how."""
        offences = self.epoch.offences if self.epoch is not None else {}
        return {self.seats[rank].machine: cause for rank, cause in offences.items() if rank}

    @property
    def proven(self) -> bool:
        """Whether it has served a request, or was there for one for long."""
        ready = self.phase is Phase.READY
        return ready and (self._answered or self._clock.now() - self._ready >= _PROVEN_S)

    def progress(self, machine: str) -> str:
        """How far the worker's preparation is, in a word."""
        if machine in self.fetching:
            return "fetching"
        return "prepared" if self._ranks.get(machine) in self._keys else "preparing"

    def prepare(self) -> None:
        """Ask every worker to fetch what it lacks."""
        for machine, rank in self._ranks.items():
            self._news[machine] = self._clock.now()
            self._to_agent(self._served.prepare(self.number, self.seats, rank, self._timing), machine)
        self._look_prepared()

    def launch(self, root_key: str, overruled: str = "") -> None:
        """Start the nodes; `root_key` is the public key of rank 0, which the caller starts. `overruled` says why
        all-reduces are to go by the star alone, if they are."""
        self.phase = Phase.LAUNCHED
        timing, now = self._timing, self._clock.now()
        self._moved = now
        self._overruled, self._collective = overruled, "star" if overruled else self._served.collective
        served = dataclasses.replace(self._served, collective=self._collective)
        membership = Membership(len(self.seats), now, timeout_s=timing.timeout_s, start_s=timing.start_s)
        self.epoch = Epoch(
            self.number,
            self._clock,
            membership,
            lambda rank: served.assign(self.number, self.seats, rank, {**self._keys, 0: root_key}),
            self._to_node,
            self._event,
        )
        for machine in self._ranks:
            self._to_agent(Launch(self.number), machine)

    def heard(self, machine: str, message: Preparing | Prepared | Spawned | NodeEnded) -> None:
        """A worker's agent speaks of this epoch. Messages of other epochs are dropped."""
        rank = self._ranks.get(machine)
        if rank is None or message.epoch != self.number or self.phase is Phase.ENDED:
            return
        match message:
            case Preparing(done_bytes=done, total_bytes=total, bytes_per_s=rate) if rank not in self._keys:
                self._note(machine, Fetching(done, total, rate))
            case Prepared(public_key=key) if rank not in self._keys:
                self._take_key(machine, rank, key)
            case NodeEnded(cause=cause) if self.epoch is not None:
                self.epoch.ended(rank, cause)
            case NodeEnded(cause=cause):
                self._blame(machine, rank, cause)

    def lose(self, machine: str, cause: str) -> None:
        """The machine is gone, its node with it."""
        rank = self._ranks.get(machine)
        if rank is None or self.phase is Phase.ENDED:
            return
        self.deserted = True
        if self.epoch is not None:
            self.epoch.lose(rank, cause)
            self.culprit = self.fallen = None  # it may come back at once
        else:
            self.fail(self._lost(rank, cause))

    def ask(self, request: GenerationRequest) -> None:
        """Let rank 0 answer the request. Raises ProtocolError for what no message can carry."""
        self._to_node(Generate(self.number, request), 0)
        self._watch.begin(self._clock.now())

    def fail(self, error: TpiedgeError) -> None:
        """It cannot go on. The first failure is the cause of the others."""
        if self.failure is None:
            self.failure = error
        self.phase = Phase.ENDED

    def tick(self) -> None:
        """Look for a worker that lives but does not get ready, and for a request that does not get on."""
        late = self._clock.now() - _STUCK_S
        if self.phase is Phase.LAUNCHED and self.epoch is not None and self._moved < late:
            stuck = next(member.rank for member in self.epoch.members if member.state is not State.READY)
            self.epoch.lose(stuck, f"no progress in loading for {_STUCK_S:.0f} s")
        if self.phase is Phase.READY and self.epoch is not None:
            self._look_after_request(self.epoch)
        for machine, since in self._news.items():
            if self.phase is Phase.PREPARING and since < late and self._ranks[machine] not in self._keys:
                self._blame(machine, self._ranks[machine], f"no progress for {_STUCK_S:.0f} s")

    def ask_counters(self) -> None:
        """Have every node say what it has done; nobody waits for the answers."""
        if self.phase is Phase.READY:
            for rank in range(len(self.seats)):
                self._to_node(AskStats(self.number), rank)

    def end(self) -> None:
        """Let every worker end its node. Idempotent."""
        if self.phase is not Phase.ENDED:
            self.phase = Phase.ENDED
        for machine in self._ranks:
            self._to_agent(Release(self.number), machine)

    def _event(self, event: Event) -> None:
        if isinstance(event, Stats):
            self.counters[event.rank] = event
        match event:
            case TpiedgeError():
                self._broke(event)
                return
            case Loading() | Ready():
                self._loads(event)
            case Token() | PromptScores():
                self._watch.advance(self._clock.now())
            case Stats(rank=0):
                self._watch.measured(event, self._clock.now())
            case Finished() | Failed():
                self._watch.end()
                self._answered |= isinstance(event, Finished) or event.kind == "UserError"
        self._tell(event)

    def _broke(self, error: TpiedgeError) -> None:
        rank = first_lost(self.epoch)
        if self.phase is not Phase.ENDED and rank is not None and self.epoch is not None:
            machine = self.seats[rank].machine or None
            verdict = judge(self.epoch, rank, len(self.seats), self._collective)
            self.quarrel = str(error) if verdict.quarrel else ""
            self.culprit = machine if self.phase is Phase.LAUNCHED and verdict.guilty else None
            self.fallen = machine if verdict.failed else None
        self.fail(with_host(error, rank, self.seats))

    def _loads(self, event: Loading | Ready) -> None:
        now = self._clock.now()
        if self._loading.get(event.rank) != event:
            self._loading[event.rank], self._moved = event, now
        if isinstance(event, Ready) and event.rank == 0:
            event = self.routing = dataclasses.replace(event, why=self._overruled or event.why)
            log_chosen(self.number, self._served.collective, event)
        if self.phase is Phase.LAUNCHED and self.epoch is not None and self.epoch.all_ready:
            self.phase, self._ready = Phase.READY, now

    def _look_after_request(self, epoch: Epoch) -> None:
        """Rank 0 that lives but does not get on is lost: the others wait for it or have nothing to wait for."""
        now = self._clock.now()
        self._watch.look(epoch.members, now)
        stuck_s = self._watch.stuck_s(now)
        if stuck_s is not None:
            epoch.lose(0, f"alive but without progress in a request for {stuck_s:.0f} s")
        elif self._watch.old(now):
            self._to_node(AskStats(self.number), 0)

    def _note(self, machine: str, fetching: Fetching) -> None:
        if self.fetching.get(machine) != fetching:
            self._news[machine] = self._clock.now()
        self.fetching[machine] = fetching

    def _take_key(self, machine: str, rank: int, key: str) -> None:
        self.fetching.pop(machine, None)
        if not is_key(key) or key in self._keys.values():
            self._blame(machine, rank, "the key of its node is none, or another node's")
            return
        self._keys[rank] = key
        self._look_prepared()

    def _blame(self, machine: str, rank: int, cause: str) -> None:
        self.culprit = machine
        self.fail(self._lost(rank, cause))

    def _lost(self, rank: int, cause: str) -> PeerLost:
        return PeerLost(rank, "its preparation", hearsay(cause), self.seats[rank].host)

    def _look_prepared(self) -> None:
        if self.phase is Phase.PREPARING and len(self._keys) == len(self._ranks):
            self.phase = Phase.PREPARED
