"""The state of each node of an epoch: a machine without sockets, threads or clock.

Laws:
1. A node goes STARTING -> JOINED -> LOADING -> READY, each at most once, and to LOST from anywhere. LOST is final.
2. A node is lost when its process ends, when it reports a failure of its own, when it is silent for longer than
   the timeout once it is ready (several times as long while it loads), or when it does not join within the start
   limit. The first cause is kept.
3. Each loss is returned exactly once, by the call that found it.
"""

from dataclasses import dataclass
from enum import StrEnum

from tpiedge.errors import ProtocolError


class NodeState(StrEnum):
    STARTING = "starting"
    JOINED = "joined"
    LOADING = "loading"
    READY = "ready"
    LOST = "lost"


#: While nodes start, more processes than cores import, read and allocate at once, and no request is running.
_LOADING_PATIENCE = 6

_ORDER = [NodeState.STARTING, NodeState.JOINED, NodeState.LOADING, NodeState.READY]


@dataclass(frozen=True)
class Loss:
    """The node `rank` was lost, because of `cause`."""

    rank: int
    cause: str


@dataclass
class Member:
    """What the master knows of one node. Times are seconds on the caller's clock."""

    rank: int
    state: NodeState
    heard: float
    step: int = 0
    block: int = 0
    bytes_read: int = 0


class Membership:
    """The nodes 0 .. nodes-1. `now` never decreases from call to call. Unknown ranks raise ProtocolError."""

    def __init__(self, nodes: int, now: float, *, timeout_s: float, start_s: float) -> None:
        self._members = [Member(rank, NodeState.STARTING, now) for rank in range(nodes)]
        self._timeout_s = timeout_s
        self._start_s = start_s

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(self._members)

    def all_in(self, state: NodeState) -> bool:
        """Whether every node has reached `state` and none is lost."""
        return all(
            member.state in _ORDER and _ORDER.index(member.state) >= _ORDER.index(state)
            for member in self._members
        )

    def reach(self, rank: int, state: NodeState, now: float) -> None:
        """The node says that it is in `state`. Raises ProtocolError for an unknown node or a step backwards."""
        member = self._member(rank)
        if member.state is NodeState.LOST:
            return
        if _ORDER.index(state) < _ORDER.index(member.state) or (
            state is member.state is not NodeState.LOADING
        ):
            raise ProtocolError(f"node {rank} says it is {state}, but it was {member.state} already")
        member.state = state
        member.heard = now

    def heartbeat(self, rank: int, step: int, block: int, bytes_read: int, now: float) -> None:
        """The node lives and is at `block` of `step`. Raises ProtocolError before it has joined."""
        member = self._member(rank)
        if member.state is NodeState.STARTING:
            raise ProtocolError(f"node {rank} sends heartbeats before it has joined")
        if member.state is NodeState.LOST:
            return
        member.heard, member.step, member.block, member.bytes_read = now, step, block, bytes_read

    def lose(self, rank: int, cause: str) -> tuple[Loss, ...]:
        """The node's process ended or it reported a failure of its own. Empty if it was lost before."""
        member = self._member(rank)
        if member.state is NodeState.LOST:
            return ()
        member.state = NodeState.LOST
        return (Loss(rank, cause),)

    def tick(self, now: float) -> tuple[Loss, ...]:
        """Loses the nodes that have been silent for too long."""
        return tuple(loss for member in self._members for loss in self._overdue(member, now))

    def _overdue(self, member: Member, now: float) -> tuple[Loss, ...]:
        silent_s = now - member.heard
        if member.state is NodeState.STARTING and silent_s > self._start_s:
            return self.lose(member.rank, f"it did not start within {self._start_s:.0f} s")
        patience = 1 if member.state is NodeState.READY else _LOADING_PATIENCE
        if member.state in _ORDER[1:] and silent_s > self._timeout_s * patience:
            return self.lose(member.rank, f"silent for {silent_s:.1f} s (killed, frozen or cut off)")
        return ()

    def _member(self, rank: int) -> Member:
        if not 0 <= rank < len(self._members):
            raise ProtocolError(f"there is no node {rank} in a cluster of {len(self._members)}")
        return self._members[rank]
