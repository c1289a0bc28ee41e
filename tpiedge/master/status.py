"""Snapshots of a master's state for other threads."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tpiedge.master.assignments import Assignment
from tpiedge.master.counters import Counted
from tpiedge.master.history import PlanHistory
from tpiedge.master.request_times import RequestHistograms, Totals
from tpiedge.master.roster import Machine, Roster
from tpiedge.master.session import Session
from tpiedge.master.session_manager import RankZero, SessionManager
from tpiedge.pack.share import NodeShare, Share, ends
from tpiedge.planner.capacity import SpareReason
from tpiedge.wire.control import Stats, WorkerLink
from tpiedge.wire.epochs import Prefetched, Preparing
from tpiedge.wire.fields import SpareKind
from tpiedge.wire.probing import LinkSpeed


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One machine of the cluster and its part of the plan.

    `rank`: None without a part. `spare`: the kind of reason for no part. `why`: explains the part or its absence.
    `attention`, `ffn`: half-open intervals of units. `memory_bytes`: the limit of memory. `speed`: bytes of weights per
    second. `planned_bytes`: the node's planned peak of memory. `disk_bytes`: bytes of weights on disk; 0 means unknown.
    `fetch_total_bytes`: above 0 while fetching. `stocked`: whether the disk has all shards that the machine needs after
    a loss. `not_stocked`: the obstacle. `counted`: only if asked for (Master.observe). `round_trip_s`,
    `link_bytes_per_s`: measurements of the link to the master; 0 means not measured. `keep_bytes`, `park_bytes`: disk
    space for kept, for parked KV pages."""

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
    keep_bytes: int = 0
    park_bytes: int = 0

    @property
    def counters(self) -> Stats | None:
        return self.counted.latest if self.counted is not None else None


_NO_HISTOGRAMS = RequestHistograms()  # made once: each turn of the master makes a snapshot


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The whole cluster. `reason`: why it is not ready, or the last event. `epoch`: 0 before the first plan.

    `collective`: the all-reduce of a token. `bulk_collective`: the all-reduce of a chunk. Both are "" for one node.
    `split_shows`: see Served. `links`: links between workers. `failed`: the thread that failed. `model`: the name of
    the model that is served or will be served; "" if only one model is known. `pack`: the id of this model's weights.
    `next_pack`: the id of the next model's weights, or "". `asleep`: no weights are in memory, and the next request
    loads them. `kept_s`: how long weights stay without requests. `histograms`: only if asked for (Master.observe)."""

    ready: bool
    reason: str
    nodes: tuple[NodeStatus, ...]
    queued: int
    running: int
    epoch: int = 0
    totals: Totals = field(default_factory=Totals)
    collective: str = ""
    bulk_collective: str = ""
    collective_why: str = ""
    split_shows: str = ""
    links: tuple[WorkerLink, ...] = ()
    failed: str = ""
    model: str = ""
    pack: str = ""
    next_pack: str = ""
    asleep: bool = False
    kept_s: float = math.inf
    history: PlanHistory = field(default_factory=PlanHistory)
    histograms: RequestHistograms = field(default_factory=lambda: _NO_HISTOGRAMS)
    keeps_context: bool = False  # prompts are kept on disk
    not_kept: str = ""  # see `without_disk`, as for `not_parked`
    not_parked: str = ""


_NOTHING = Preparing(0, 0, 0, 0.0)
_UNKNOWN = Prefetched(0, 0, 0, False, "")
_NO_PART = Assignment("", NodeShare(Share(0), {}), 0, 0, "")
_NO_LINK = LinkSpeed(0.0, 0.0)


def node_statuses(
    roster: Roster,
    sessions: SessionManager,
    spare: Mapping[str, SpareReason],
    prefetched: Mapping[str, Prefetched],
    now: float,
    *,
    int8: bool,
) -> tuple[NodeStatus, ...]:
    """Describes all machines. `spare`: why they have no part. `prefetched`: reports on their disks. `int8`:
    whether speeds are those of quantised weights."""
    workers = [
        _worker(one, sessions, spare.get(one.name), prefetched.get(one.name, _UNKNOWN), now, int8=int8)
        for one in roster.machines
    ]
    return _own(sessions.serving, sessions.rank_zero), *workers


def _own(serving: Session | None, rank_zero: RankZero) -> NodeStatus:
    part = _NO_PART if serving is None else serving.assignments[0]
    return NodeStatus(
        name="master",
        rank=None if serving is None else 0,
        state=_state(serving, 0),
        attention=ends(part.share.along("attention")),
        ffn=ends(part.share.axes.get("ffn", part.share.along("experts"))),
        threads=rank_zero.threads,
        memory_bytes=rank_zero.memory_bytes,
        speed=part.speed,
        weight_bytes=part.weight_bytes,
        last_seen_s=0.0,
        why=part.why,
        pid=rank_zero.pid,
        counted=None if serving is None else serving.counted(0),
        planned_bytes=part.planned_bytes,
        keep_bytes=rank_zero.pages.keep_bytes,
        park_bytes=rank_zero.pages.park_bytes,
    )


def _worker(
    machine: Machine,
    sessions: SessionManager,
    spare: SpareReason | None,
    disk: Prefetched,
    now: float,
    *,
    int8: bool,
) -> NodeStatus:
    serving, coming, offer = sessions.serving, sessions.coming, machine.offer
    rank = None if serving is None else serving.ranks.get(machine.name)
    part = _NO_PART if serving is None or rank is None else serving.assignments[rank]
    fetching = coming.fetching.get(machine.name, _NOTHING) if coming is not None else _NOTHING
    link = machine.link or _NO_LINK
    state, reason = _situation(machine, sessions, rank, spare)
    why = reason.why if isinstance(reason, SpareReason) else reason
    if not why and machine.slowdown != 1 and part.why:
        why = f"{part.why}; its arithmetic takes {machine.slowdown:.1f} times as long as it measured"
    return NodeStatus(
        name=machine.name,
        rank=rank,
        state=state,
        attention=ends(part.share.along("attention")),
        ffn=ends(part.share.axes.get("ffn", part.share.along("experts"))),
        threads=offer.threads,
        memory_bytes=offer.memory_bytes,
        speed=offer.capacity.speed(int8) / machine.slowdown,
        weight_bytes=part.weight_bytes,
        last_seen_s=max(0.0, now - machine.heard),
        why=why or part.why,
        host=offer.host,
        fetched_bytes=fetching.done_bytes,
        fetch_total_bytes=fetching.total_bytes,
        fetch_bytes_per_s=fetching.bytes_per_s,
        counted=None if serving is None or rank is None else serving.counted(rank),
        spare=reason.kind if isinstance(reason, SpareReason) else "",
        disk_bytes=disk.held_bytes,
        stocked=disk.complete,
        not_stocked=disk.why,
        planned_bytes=part.planned_bytes,
        round_trip_s=link.round_trip_s,
        link_bytes_per_s=link.bytes_per_s,
        left_out_s=max(0.0, machine.standing.until - now) if state == "left out" else 0.0,
        keep_bytes=offer.keep_bytes,
        park_bytes=offer.park_bytes,
    )


def _situation(
    machine: Machine, sessions: SessionManager, rank: int | None, spare: SpareReason | None
) -> tuple[str, SpareReason | str]:
    """Returns (the machine's state, the reason for the state or "")."""
    coming = sessions.coming
    if not machine.present:
        if spare is not None and spare.kind == "too small":  # it left when it heard that
            return "lost", spare
        return "lost", machine.cause
    has_part = rank is not None or (coming is not None and machine.name in coming.machines)
    if machine.drained:
        leaves = "in use until the plan without it is ready"
        return ("draining", leaves) if has_part else ("drained", spare or "")
    if coming is not None and machine.name in coming.machines:
        return coming.progress(machine.name), ""
    if rank is not None:
        return _state(sessions.serving, rank), ""
    if spare is not None and spare.kind == "excluded":
        return "left out", spare
    return "spare", spare or "the plan has no part for it"


def _state(serving: Session | None, rank: int) -> str:
    if serving is None or serving.epoch is None:
        return "waiting"
    return serving.epoch.members[rank].state.value
