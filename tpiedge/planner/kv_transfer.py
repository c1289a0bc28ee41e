"""Plans moves of KV heads when a plan replaces another. Pure.

Each old node parks its heads on its machine's disk. Rank 0 gathers each head that a machine lacks, from the lowest old
rank with that head. Then rank 0 scatters the heads to their new nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpiedge.pack.share import Share

_LOCAL_BYTES_PER_S: Final = 200e6  # of a slow computer's disk
_LINK_BYTES_PER_S: Final = 1e6  # of a link that was not measured


@dataclass(frozen=True)
class KVHolder:
    """A node's KV heads. `machine` is "" for the master's machine."""

    machine: str
    heads: Share
    link_bytes_per_s: float | None = None


@dataclass(frozen=True)
class KVMoves:
    gathered: tuple[tuple[int, int], ...]  # by rank 0: (old rank, head)
    scattered: tuple[tuple[int, int], ...]  # by rank 0: (new rank, head)


def plan_moves(old: Sequence[KVHolder], new: Sequence[KVHolder]) -> KVMoves:
    """Finds the moves between two plans' nodes. Both plans must hold every head."""
    before, nothing = {one.machine: one.heads for one in old}, Share(0, 0)
    lacking = [
        (rank, head)
        for rank, one in enumerate(new)
        for head in one.heads
        if head not in before.get(one.machine, nothing)
    ]
    own = old[0].heads
    wanted = sorted({head for _, head in lacking})
    gathered = [
        next((rank, head) for rank, one in enumerate(old) if head in one.heads)
        for head in wanted
        if head not in own
    ]
    scattered = tuple((rank, head) for rank, head in lacking if rank)
    return KVMoves(tuple(gathered), scattered)


def transfer_s(moves: KVMoves, old: Sequence[KVHolder], new: Sequence[KVHolder], head_bytes: float) -> float:
    """Predicts a transfer's seconds. `head_bytes` counts the bytes of one head in all layers and pages."""
    senders, receivers = [old[rank] for rank, _ in moves.gathered], [new[rank] for rank, _ in moves.scattered]
    rates = [one.link_bytes_per_s or _LINK_BYTES_PER_S for one in (*senders, *receivers)]
    travels = sum(head_bytes / rate for rate in rates)
    # All machines write at a time, then all read.
    written = max(len(one.heads) for one in old) + len(moves.gathered)
    read = max(len(one.heads) for one in new)
    return travels + (written + read) * head_bytes / _LOCAL_BYTES_PER_S
