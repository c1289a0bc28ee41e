"""Who belongs to the cluster and how they are: a machine without sockets, threads or clock.

Laws:
1. A node goes STARTING -> JOINED -> LOADING -> READY, each at most once, and to LOST from anywhere. LOST is final.
2. A node is lost when its process ended, when it reported a failure of its own, when it was silent for longer than
   the timeout once it was ready (several times as long while it loads), or when it did not join within the start
   limit. The first cause stays.
3. Each loss is returned exactly once, by the call that found it.
"""

from dataclasses import dataclass
from enum import StrEnum

from tpiedge.errors import ProtocolError

__all__ = ["Loss", "Member", "Membership", "State"]


class State(StrEnum):
    STARTING = "starting"
    JOINED = "joined"
    LOADING = "loading"
    READY = "ready"
    LOST = "lost"


#: While nodes start, more processes than cores import, read and allocate at once, and nobody waits for an answer.
_LOADING_PATIENCE = 6

_ORDER = [State.STARTING, State.JOINED, State.LOADING, State.READY]


@dataclass(frozen=True)
class Loss:
    """The node `rank` is gone."""

    rank: int
    cause: str


@dataclass
class Member:
    """What the master knows of one node. Times are seconds on the caller's clock."""

    rank: int
    state: State
    heard: float
    step: int = 0
    block: int = 0
    bytes_read: int = 0


class Membership:
    """The nodes 0 .. nodes-1. `now` never decreases from call to call."""

    def __init__(self, nodes: int, now: float, *, timeout_s: float, start_s: float) -> None:
        self._members = [Member(rank, State.STARTING, now) for rank in range(nodes)]
        self._timeout_s = timeout_s
        self._start_s = start_s

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(self._members)

    def all_in(self, state: State) -> bool:
        """Whether every node has reached `state` and none is lost."""
        return all(
            member.state in _ORDER and _ORDER.index(member.state) >= _ORDER.index(state)
            for member in self._members
        )

    def reach(self, rank: int, state: State, now: float) -> None:
        """The node says that it is in `state`. Raises ProtocolError for an unknown node or a step backwards."""
        member = self._member(rank)
        if member.state is State.LOST:
            return
        if _ORDER.index(state) < _ORDER.index(member.state) or (state is member.state is not State.LOADING):
            raise ProtocolError(f"node {rank} says it is {state}, but it was {member.state} already")
        member.state = state
        member.heard = now

    def heartbeat(self, rank: int, step: int, block: int, bytes_read: int, now: float) -> None:
        """The node lives and is at `block` of `step`."""
        member = self._member(rank)
        if member.state is State.STARTING:
            raise ProtocolError(f"node {rank} sends heartbeats before it has joined")
        if member.state is State.LOST:
            return
        member.heard, member.step, member.block, member.bytes_read = now, step, block, bytes_read

    def lose(self, rank: int, cause: str) -> tuple[Loss, ...]:
        """The node's process ended or it reported a failure of its own."""
        member = self._member(rank)
        if member.state is State.LOST:
            return ()
        member.state = State.LOST
        return (Loss(rank, cause),)

    def tick(self, now: float) -> tuple[Loss, ...]:
        """Find the nodes that have been silent for too long."""
        return tuple(loss for member in self._members for loss in self._overdue(member, now))

    def _overdue(self, member: Member, now: float) -> tuple[Loss, ...]:
        silent_s = now - member.heard
        if member.state is State.STARTING and silent_s > self._start_s:
            return self.lose(member.rank, f"it did not start within {self._start_s:.0f} s")
        patience = 1 if member.state is State.READY else _LOADING_PATIENCE
        if member.state in _ORDER[1:] and silent_s > self._timeout_s * patience:
            return self.lose(member.rank, f"silent for {silent_s:.1f} s (frozen or cut off)")
        return ()

    def _member(self, rank: int) -> Member:
        if not 0 <= rank < len(self._members):
            raise ProtocolError(f"there is no node {rank} in a cluster of {len(self._members)}")
        return self._members[rank]
