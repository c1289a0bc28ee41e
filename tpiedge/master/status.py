"""Snapshots of a master's state, made by its control thread, read by any thread."""

from dataclasses import dataclass, field
from typing import Literal

from tpiedge.master.counters import Counted
from tpiedge.master.history import PlanHistory
from tpiedge.master.request_times import RequestHistograms
from tpiedge.wire.control import Stats, WorkerLink
from tpiedge.wire.fields import SpareKind


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One machine of the cluster and its part of the plan.

    `rank` is None for a machine that takes no part; `why` explains that, or the size of its share; `spare` is the kind
    of reason for which the plan has no part for it, "" where it has, or where none was made yet. `attention` and `ffn`
    are half-open intervals of units; `memory_bytes` is its limit (0: unknown), `speed` its measured bytes per second
    of weights stored as the model's are (0: unknown), `last_seen_s` the time since its last message. While it fetches,
    `fetch_total_bytes` is not 0. `disk_bytes` of the model's weights are on its disk (0: it has not said); `stocked`:
    all that it would need after another machine's loss is; `not_stocked` says why not, where it never will be.
    `counted` is what its node counts, None unless that was asked for (Master.observe). `planned_bytes` is what the plan
    lets its node grow to. The link to the master has `round_trip_s` and `link_bytes_per_s` (0: not measured). It is
    left out of plans for `left_out_s` more seconds.
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
    counted: Counted | None = None
    spare: SpareKind | Literal[""] = ""
    disk_bytes: int = 0
    stocked: bool = False
    not_stocked: str = ""
    planned_bytes: int = 0
    round_trip_s: float = 0.0
    link_bytes_per_s: float = 0.0
    left_out_s: float = 0.0

    @property
    def counters(self) -> Stats | None:
        """The latest ones of `counted`."""
        return self.counted.latest if self.counted is not None else None


@dataclass(frozen=True, slots=True)
class Totals:
    """Requests by how they ended, and tokens, since the master started. Refused ones were never accepted.

    `cut` of the `finished` ones ended because the answer had as many tokens as it may. `cached_tokens` of the
    `prompt_tokens` had been kept from earlier requests. `resumed`: how often an answer went on in another epoch;
    `paused_s`: for how long they had paused, added up.
    """

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    resumed: int = 0
    paused_s: float = 0.0
    cut: int = 0


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The whole cluster. `reason` says why it is not ready, or what happened last; `epoch` is 0 before the first plan.

    While several nodes serve, `collective` names the collective for the all-reduces of a token, `bulk_collective` the
    one for those of a whole chunk, and `collective_why` is a sentence that says why these. `split_shows`: why the last
    bits of answers may depend on who computes them; "" where they do not, or nobody serves. `links` are those between
    workers, as their nodes measured them. `failed` names a thread of
    the master whose failure ends it. `histograms` are empty unless they were asked for (Master.observe).
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
    split_shows: str = ""
    links: tuple[WorkerLink, ...] = ()
    failed: str = ""
    history: PlanHistory = field(default_factory=PlanHistory)
    histograms: RequestHistograms = field(default_factory=RequestHistograms)


def collective_names(collective: str, bulk_collective: str) -> str:
    """The collectives as the user reads them: for the all-reduces of a token, and for a prompt's if that differs."""
    return collective if collective == bulk_collective else f"{collective} (prompts: {bulk_collective})"
