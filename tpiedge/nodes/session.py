"""One epoch at the master, from its plan to its end.

Phases: PREPARING (the workers fetch what they lack) -> PREPARED -> LAUNCHED (the nodes start and load) -> READY, and
ENDED from anywhere. A session ends by itself only over a loss or a failure; it never ends twice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tpiedge.clock import Clock
from tpiedge.errors import PeerLost, TpiedgeError
from tpiedge.nodes.epoch import Epoch, Event
from tpiedge.nodes.hearsay import hearsay
from tpiedge.nodes.membership import Membership, State
from tpiedge.nodes.timing import Timing
from tpiedge.pack.share import NodeShare
from tpiedge.transport.keys import is_key
from tpiedge.wire.control import Assign, Loading, Ready
from tpiedge.wire.epochs import Launch, NodeEnded, Prepare, Prepared, Preparing, Release, Spawned
from tpiedge.wire.fields import Compute
from tpiedge.wire.messages import Message

__all__ = ["Arrangement", "Fetching", "Phase", "Seat", "Served", "Session", "node_name"]


#: Hashing what is on disk already brings no news, nor does building what computes.
_STUCK_S = 300.0


class Phase(StrEnum):
    PREPARING = "preparing"
    PREPARED = "prepared"
    LAUNCHED = "launched"
    READY = "ready"
    ENDED = "ended"


@dataclass(frozen=True)
class Seat:
    """What one machine does in a plan; its rank is its place in the plan. `machine` is "" for the master's own.

    `why` is a sentence for the user.
    """

    machine: str
    share: NodeShare
    threads: int
    weight_bytes: int
    why: str = field(compare=False)


@dataclass(frozen=True)
class Arrangement:
    """Who does what, rank 0 first, and why the other machines have no part."""

    seats: tuple[Seat, ...]
    spare: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Served:
    """What every epoch serves."""

    pack: Path
    pack_id: str
    compute: Compute
    capacity_tokens: int


@dataclass(frozen=True)
class Fetching:
    """How far a worker's fetching is."""

    done_bytes: int
    total_bytes: int
    bytes_per_s: float


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
        self.fetching: dict[str, Fetching] = {}
        self.epoch: Epoch | None = None
        self._served = served
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

    def progress(self, machine: str) -> str:
        """How far the worker's preparation is, in a word."""
        if machine in self.fetching:
            return "fetching"
        return "prepared" if self._ranks.get(machine) in self._keys else "preparing"

    def prepare(self) -> None:
        """Ask every worker to fetch what it lacks."""
        for machine, rank in self._ranks.items():
            self._news[machine] = self._clock.now()
            self._to_agent(self._prepare(rank), machine)
        self._look_prepared()

    def launch(self, root_key: str) -> None:
        """Start the nodes; `root_key` is the public key of rank 0, which the caller starts."""
        self.phase = Phase.LAUNCHED
        timing, now = self._timing, self._clock.now()
        self._moved = now
        membership = Membership(len(self.seats), now, timeout_s=timing.timeout_s, start_s=timing.start_s)
        self.epoch = Epoch(
            self.number,
            self._clock,
            membership,
            lambda rank, endpoint: self._assign(rank, endpoint, root_key),
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
        if self.epoch is not None:
            self.epoch.lose(rank, cause)
            self.culprit = None  # it may come back at once
        else:
            self._fail(PeerLost(rank, "its preparation", hearsay(cause)))

    def tick(self) -> None:
        """Look for a worker that lives but does not get ready, with its shard or with its node."""
        late = self._clock.now() - _STUCK_S
        if self.phase is Phase.LAUNCHED and self.epoch is not None and self._moved < late:
            stuck = next(member.rank for member in self.epoch.members if member.state is not State.READY)
            self.epoch.lose(stuck, f"no progress in loading for {_STUCK_S:.0f} s")
        for machine, since in self._news.items():
            if self.phase is Phase.PREPARING and since < late and self._ranks[machine] not in self._keys:
                self._blame(machine, self._ranks[machine], f"no progress for {_STUCK_S:.0f} s")

    def end(self) -> None:
        """Let every worker end its node. Idempotent."""
        if self.phase is not Phase.ENDED:
            self.phase = Phase.ENDED
        for machine in self._ranks:
            self._to_agent(Release(self.number), machine)

    def _event(self, event: Event) -> None:
        if isinstance(event, TpiedgeError):
            if self.phase is Phase.LAUNCHED:
                self.culprit = self._first_lost()
            self._fail(event)
            return
        if isinstance(event, Loading | Ready) and self._loading.get(event.rank) != event:
            self._loading[event.rank], self._moved = event, self._clock.now()
        if isinstance(event, Ready) and self.phase is Phase.LAUNCHED and self.epoch is not None:
            self.phase = Phase.READY if self.epoch.all_ready else Phase.LAUNCHED
        self._tell(event)

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
        self._fail(PeerLost(rank, "its preparation", hearsay(cause)))

    def _first_lost(self) -> str | None:
        """The worker whose node is lost; None where it is rank 0."""
        members = self.epoch.members if self.epoch is not None else ()
        lost = [member.rank for member in members if member.state is State.LOST]
        return self.seats[lost[0]].machine or None if lost else None

    def _fail(self, error: TpiedgeError) -> None:
        """The first failure is the cause of the others."""
        if self.failure is None:
            self.failure = error
        self.phase = Phase.ENDED

    def _look_prepared(self) -> None:
        if self.phase is Phase.PREPARING and len(self._keys) == len(self._ranks):
            self.phase = Phase.PREPARED

    def _prepare(self, rank: int) -> Prepare:
        seat, served, timing = self.seats[rank], self._served, self._timing
        return Prepare(
            epoch=self.number,
            rank=rank,
            ranks=len(self.seats),
            pack=served.pack_id,
            attention=(seat.share.attention.start, seat.share.attention.stop),
            ffn=(seat.share.ffn.start, seat.share.ffn.stop),
            compute=served.compute,
            threads=seat.threads,
            capacity_tokens=served.capacity_tokens,
            heartbeat_s=timing.heartbeat_s,
            timeout_s=timing.timeout_s,
            stall_s=timing.stall_s,
        )

    def _assign(self, rank: int, root_endpoint: str, root_key: str) -> Assign:
        seat, served = self.seats[rank], self._served
        return Assign(
            epoch=self.number,
            rank=rank,
            nodes=tuple(range(len(self.seats))),
            attention=(seat.share.attention.start, seat.share.attention.stop),
            ffn=(seat.share.ffn.start, seat.share.ffn.stop),
            pack=str(served.pack) if rank == 0 else "",
            compute=served.compute,
            threads=seat.threads,
            capacity_tokens=served.capacity_tokens,
            slots=1,
            root_endpoint=root_endpoint if rank else "",
            root_key=root_key,
            peer_keys=tuple(sorted(self._keys.items())) if rank == 0 else (),
        )
