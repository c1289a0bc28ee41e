"""`GET /admin/cluster`: the cluster as its users think of it, for `tpiedge top` and the page. No socket and no thread.

Computed when somebody looks, from what the master knows. Rates are of the last seconds: those of a machine between two
arrivals of its counters, of tokens between two looks. So the first look has none.

Where the time of a step goes is the mean of the steps of the last seconds that were recorded (`timeline.py`).
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal, TypeAlias

from tpiedge.api.guard import Sender
from tpiedge.api.service import ModelInfo, PendingJoin
from tpiedge.api.timeline import ShownStep, StepMeans
from tpiedge.master.history import ClusterEvent
from tpiedge.master.journal import RequestLine
from tpiedge.master.status import ClusterStatus, NodeStatus

MachineState: TypeAlias = Literal[
    "serving", "loading", "spare", "left out", "draining", "drained", "waiting", "lost"
]
"""It answers, gets ready to, is not needed, may not for a while, gives its part up, has given it up, waits for a plan,
or is away."""

#: Tokens per second are those of so many seconds at most, and of one at least.
_WINDOW_S: Final = 6.0
_SHORTEST_S: Final = 0.9
_LOADING: Final = ("starting", "joined", "loading", "preparing", "prepared", "fetching")
_SAME: Final[Mapping[str, MachineState]] = {
    name: name for name in ("spare", "left out", "draining", "drained", "lost")
}
#: Who was heard within so many seconds is heard now.
_HEARD_S: Final = 3.0

_JsonObject: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen at `at`, on the caller's clock."""

    at: float
    epoch: int
    tokens: int


class ClusterPicture:
    """Remembers the last looks. For one thread."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque()
        self._means = StepMeans()

    def of(
        self,
        status: ClusterStatus,
        model: ModelInfo,
        requests: Sequence[RequestLine],
        events: Sequence[ClusterEvent],
        waiting: Sequence[PendingJoin],
        timeline: ShownStep | None,
        now: float,
        sender: Callable[[str], Sender | None],
    ) -> _JsonObject:
        """The picture at `now`, in seconds on a clock that never runs backwards; `status` with its counters,
        `timeline` as of shown_step. `sender` says who a line's client is."""
        before, look = self._remember(status, now)
        means = self._means.after(timeline)
        return {
            "object": "tpiedge.cluster",
            "model": {"name": model.name, "context_tokens": model.context_tokens},
            "ready": status.ready,
            "reason": status.reason,
            "epoch": status.epoch,
            "collective": {
                "token": status.collective,
                "chunk": status.bulk_collective,
                "why": status.collective_why,
            },
            "split_shows": status.split_shows,
            "machines": [_machine(node, status, _step(node, means)) for node in status.nodes],
            "timeline": None if timeline is None else timeline.json,
            "waiting": [asdict(one) for one in waiting],
            "requests": [_request(one, sender(one.client)) for one in requests],
            "events": [asdict(one) for one in events],
            "totals": _totals(status, before, look),
        }

    def _remember(self, status: ClusterStatus, now: float) -> tuple[_Look, _Look]:
        """The look that rates count from, and this one."""
        look = _Look(now, status.epoch, status.totals.tokens)
        looks = self._looks
        while looks and (looks[0].epoch != look.epoch or now - looks[0].at > _WINDOW_S):
            looks.popleft()
        before = looks[0] if looks else look
        if not looks or now - looks[-1].at >= _SHORTEST_S / 2:  # so many looks at a time cost no memory
            looks.append(look)
        return before, look


def _machine(node: NodeStatus, status: ClusterStatus, step: Mapping[str, float] | None) -> _JsonObject:
    nodes = status.nodes
    return {
        "name": node.name,
        "host": node.host,
        "rank": node.rank,
        "state": _state(node, status.ready),
        "why": node.why,
        "left_out_s": math.ceil(node.left_out_s),
        "silent_s": 0 if node.last_seen_s < _HEARD_S else math.floor(node.last_seen_s),
        "heads": list(node.attention),
        "ffn_tiles": list(node.ffn),
        "share": {
            "heads": _part(node.attention, max(one.attention[1] for one in nodes)),
            "ffn": _part(node.ffn, max(one.ffn[1] for one in nodes)),
        },
        "threads": node.threads,
        "speed_bytes_per_s": node.speed,
        "memory": _memory(node),
        "disk": {
            "held_bytes": node.disk_bytes,
            "read_bytes_per_s": _rate(node, "disk_read_bytes"),
            "spare_ranges": "complete" if node.stocked else "never" if node.not_stocked else "incomplete",
            "why": node.not_stocked,
        },
        "fetching": {
            "done_bytes": node.fetched_bytes,
            "total_bytes": node.fetch_total_bytes,
            "bytes_per_s": node.fetch_bytes_per_s,
        }
        if node.fetch_total_bytes
        else None,
        "link": {
            "round_trip_s": node.round_trip_s,
            "bytes_per_s": node.link_bytes_per_s,
        }
        if node.link_bytes_per_s
        else None,
        "links": _links(node, status),
        "sent_bytes_per_s": _rate(node, "bytes_sent"),
        "step": step,
    }


def _links(node: NodeStatus, status: ClusterStatus) -> list[_JsonObject]:
    """To other workers, by their ranks."""
    called = {one.rank: {"name": one.name, "host": one.host} for one in status.nodes}
    found = {
        link.low + link.high - node.rank: link.round_trip_s
        for link in status.links
        if node.rank in (link.low, link.high)
    }
    return [
        called[rank] | {"round_trip_s": trip_s} for rank, trip_s in sorted(found.items()) if rank in called
    ]


def _state(node: NodeStatus, ready: bool) -> MachineState:
    if node.state in _SAME:
        return _SAME[node.state]
    if node.state == "ready" or (ready and node.rank is not None):  # it may fetch for the next plan meanwhile
        return "serving"
    return "loading" if node.state in _LOADING else "waiting"


def _part(units: tuple[int, int], of: int) -> float:
    return round((units[1] - units[0]) / of, 4) if of else 0.0


def _memory(node: NodeStatus) -> _JsonObject:
    """`budget_bytes` 0: not limited. What the plan gives and the node does not say yet is 0."""
    stats = node.counters
    weights, window, kv, reserved = (
        (stats.weight_bytes, stats.window_bytes, stats.kv_bytes, stats.kv_reserved_bytes)
        if stats is not None
        else (node.weight_bytes, 0, 0, 0)
    )
    # While the cache is not full, weights use its room.
    borrowed = max(0, weights - node.weight_bytes)
    program = max(0, node.planned_bytes - node.weight_bytes - reserved) if node.planned_bytes else 0
    return {
        "budget_bytes": node.memory_bytes,
        "planned_bytes": node.planned_bytes,
        "pinned_bytes": max(0, weights - window),
        "window_bytes": window,
        "kv_bytes": kv,
        "kv_room_bytes": max(0, reserved - kv - borrowed),
        "kv_reserved_bytes": reserved,
        "program_bytes": program if stats is not None else 0,
        "free_bytes": max(0, node.memory_bytes - node.planned_bytes) if node.memory_bytes else 0,
        "peak_rss_bytes": stats.peak_rss_bytes if stats is not None else 0,
    }


def _step(node: NodeStatus, means: Mapping[int, Mapping[str, float]]) -> Mapping[str, float] | None:
    """Where the time of a step goes on that machine; None while it takes none."""
    counted = node.counted
    if node.rank is None or counted is None or counted.latest.steps <= counted.first.steps:
        return None
    return means.get(node.rank)


def _request(line: RequestLine, sender: Sender | None) -> _JsonObject:
    """Times in whole seconds: a picture in which nothing happens stays the same for as long. The client itself may be
    the digest of a key, which could be guessed from that."""
    age_s = None if line.age_s is None else math.floor(line.age_s)
    reading = line.reading
    shown = asdict(line)
    del shown["client"]
    return shown | {
        "sender": None if sender is None else asdict(sender),
        "age_s": age_s,
        "reading": None
        if reading is None
        else {
            "done_tokens": reading.done_tokens,
            "of_tokens": reading.of_tokens,
            "tokens_per_s": round(reading.tokens_per_s, 3),
            "left_s": None if reading.left_s is None else math.ceil(reading.left_s),
        },
        "tokens_per_s": round(line.tokens_per_s, 3),
        "paused_s": math.floor(line.paused_s),
    }


def _totals(status: ClusterStatus, before: _Look, look: _Look) -> _JsonObject:
    totals, spent_s = status.totals, look.at - before.at
    head = next((node.counters for node in status.nodes if node.rank == 0), None)
    rate = (look.tokens - before.tokens) / spent_s if spent_s >= _SHORTEST_S else None
    return {
        "running": status.running,
        "queued": status.queued,
        "tokens_per_s": None if rate is None else round(rate, 3),
        "drafted": head.drafted if head is not None else 0,
        "accepted": head.accepted if head is not None else 0,
        "kv_pages": head.kv_pages if head is not None else 0,
        "kv_pages_used": head.kv_pages_used if head is not None else 0,
        **asdict(totals),
    }


def _rate(node: NodeStatus, field: str) -> float | None:
    """Bytes per second; None where that is not known."""
    counted = node.counted
    if counted is None or counted.spent_s < 0.5:
        return None
    more: float = getattr(counted.latest, field) - getattr(counted.first, field)
    return round(max(0.0, more) / counted.spent_s)
