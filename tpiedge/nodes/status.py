"""What a master tells about itself: snapshots, made by its control thread, read by any."""

from dataclasses import dataclass

from tpiedge.wire.control import Stats

__all__ = ["ClusterStatus", "NodeStatus", "Totals"]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One machine of the cluster and its part of the plan.

    `rank` is None for a machine that takes no part, and `why` says the reason of that or of the size of its share.
    `attention` and `ffn` are half-open intervals of units; `memory_bytes` is its limit (0: unknown), `speed` its
    measured bytes per second of weights such as the model's (0: unknown), `last_seen_s` how long ago it was heard of.
    While it fetches, `fetch_total_bytes` is not 0. `counters` is what its node said last, if anybody wanted to know
    (Master.observe).
    """

    name: str
    rank: int | None
    state: str
    attention: tuple[int, int]
    ffn: tuple[int, int]
    threads: int
    memory_bytes: int
    speed: float
    weight_bytes: int
    last_seen_s: float
    why: str = ""
    host: str = ""
    pid: int | None = None
    fetched_bytes: int = 0
    fetch_total_bytes: int = 0
    fetch_bytes_per_s: float = 0.0
    counters: Stats | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Requests by how they ended, and tokens, since the master began. Those that were refused were never accepted."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """`reason` says, in words, why it is not ready, or what happened last; `epoch` is 0 before the first plan.

    While several nodes serve: `collective` is by which the all-reduces of a token go, `bulk_collective` by which those
    of a whole chunk do, and `collective_why` a sentence for whoever wonders.
    """

    ready: bool
    reason: str
    nodes: tuple[NodeStatus, ...]
    queued: int
    running: int
    epoch: int = 0
    totals: Totals = Totals()
    collective: str = ""
    bulk_collective: str = ""
    collective_why: str = ""
