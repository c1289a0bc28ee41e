"""Keys and values that travel when a plan replaces another. A machine keeps what both its nodes have. The rest goes by
rank 0: to it from the lowest old rank that has the head, and from it to each new node that lacks it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpiedge.pack.share import Share

_LOCAL_BYTES_PER_S: Final = 200e6  # of the page cache of a slow computer, by which kept heads go
_LINK_BYTES_PER_S: Final = 1e6  # of a link that was not measured


@dataclass(frozen=True)
class KVHolder:
    """A node: its machine ("": the master's, rank 0's) and its KV heads."""

    machine: str
    heads: Share
    link_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Carriage:
    """`kept`: stays on its machine, by old rank; `stored`: heads of old rank 0 that new nodes elsewhere lack; `sent`:
    (old rank, head) to rank 0; `brought`: (new rank, head) from rank 0."""

    kept: tuple[Share, ...]
    stored: tuple[int, ...]
    sent: tuple[tuple[int, int], ...]
    brought: tuple[tuple[int, int], ...]


def carriage(old: Sequence[KVHolder], new: Sequence[KVHolder]) -> Carriage:
    """The transfers between the nodes of two plans, in rank order; both hold every head."""
    after, before = ({one.machine: one.heads for one in nodes} for nodes in (new, old))
    nothing, kept = Share(0, 0), []
    for one in old:
        stays = after.get(one.machine, nothing)
        start, stop = max(one.heads.start, stays.start), min(one.heads.stop, stays.stop)
        kept.append(Share(start, stop) if start < stop else nothing)
    lacking = [
        (rank, head)
        for rank, one in enumerate(new)
        for head in one.heads
        if head not in before.get(one.machine, nothing)
    ]
    own = old[0].heads
    wanted = sorted({head for _, head in lacking})
    sent = [
        next((rank, head) for rank, one in enumerate(old) if head in one.heads)
        for head in wanted
        if head not in own
    ]
    brought = tuple((rank, head) for rank, head in lacking if rank)
    stored = tuple(sorted({head for _, head in brought} & set(own)))
    return Carriage(tuple(kept), stored, tuple(sent), brought)


def carriage_s(found: Carriage, old: Sequence[KVHolder], new: Sequence[KVHolder], head_bytes: float) -> float:
    """Seconds of the transfer, link after link; `head_bytes`: of a head in all layers and pages."""
    senders, receivers = [old[rank] for rank, _ in found.sent], [new[rank] for rank, _ in found.brought]
    rates = [one.link_bytes_per_s or _LINK_BYTES_PER_S for one in (*senders, *receivers)]
    travels = sum(head_bytes / rate for rate in rates)
    heads = [len(kept) for kept in found.kept]
    heads[0] += len(found.stored) + len(found.sent)
    return travels + 2 * max(heads) * head_bytes / _LOCAL_BYTES_PER_S
