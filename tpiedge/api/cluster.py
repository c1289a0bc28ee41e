"""`GET /admin/cluster`: the cluster as its users think of it, for `tpiedge top` and the page. No socket and no thread.

Computed when somebody looks, from what the master knows. Rates are of the last seconds: those of a machine between two
arrivals of its counters, of tokens between two looks. So the first look has none.

Where the time of a step goes is the mean of the steps of this epoch that `timeline.py` showed in the last seconds.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final, TypeAlias

from tpiedge.api.guard import Sender
from tpiedge.api.service import PendingJoin, Service
from tpiedge.api.timeline import PARTS
from tpiedge.master.journal import RequestLine
from tpiedge.master.status import ClusterStatus, NodeStatus

#: Tokens per second are those of so many seconds at most, and of one at least; the means of steps, too.
_WINDOW_S: Final = 6.0
_SHORTEST_S: Final = 0.9
_LOADING: Final = ("starting", "joined", "loading", "preparing", "prepared", "fetching")
#: States that are shown as they are.
_SAME: Final = ("spare", "left out", "draining", "drained", "lost")

_JsonObject: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen at `at`, on the caller's clock."""

    at: float
    epoch: int
    tokens: int


class ClusterPicture:
    """Remembers the last looks. For one thread."""

    def __init__(self, service: Service, sender: Callable[[str], Sender | None]) -> None:
        """`sender` says who the client of a request is."""
        self._service = service
        self._sender = sender
        self._looks: deque[_Look] = deque()
        #: The shown machines of each step by their ranks, by the time at which it was told; all of one epoch.
        self._steps: dict[float, dict[int, Mapping[str, float]]] = {}

    def of(
        self,
        status: ClusterStatus,
        waiting: Sequence[PendingJoin],
        timeline: Mapping[str, Any] | None,
        now: float,
    ) -> _JsonObject:
        """The picture at `now`, in seconds on a clock that never runs backwards; `status` with its counters,
        `timeline` as of shown_step."""
        model, requests, events = self._service.model(), self._service.request_lines(), self._service.events()
        before, look = self._remember(status, now)
        means = {} if timeline is None else self._means(timeline)
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
            "timeline": timeline,
            "waiting": [asdict(one) for one in waiting],
            "requests": [_request(one, self._sender(one.client)) for one in requests],
            "events": [asdict(one) for one in events],
            "totals": _totals(status, before, look),
        }

    def _remember(self, status: ClusterStatus, now: float) -> tuple[_Look, _Look]:
        """The look that rates count from, and this one."""
        look = _Look(now, status.epoch, status.totals.tokens)
        looks = self._looks
        if looks and looks[-1].epoch != look.epoch:
            looks.clear()
            self._steps.clear()
        while looks and now - looks[0].at > _WINDOW_S:
            looks.popleft()
        before = looks[0] if looks else look
        if not looks or now - looks[-1].at >= _SHORTEST_S / 2:  # so many looks at a time cost no memory
            looks.append(look)
        return before, look

    def _means(self, latest: Mapping[str, Any]) -> dict[int, dict[str, float]]:
        """What the time of a step goes to on the machine of each rank, with this step, which is shown now, perhaps
        again."""
        self._steps[latest["at"]] = {one["rank"]: one for one in latest["machines"]}
        self._steps = {at: one for at, one in self._steps.items() if abs(latest["at"] - at) <= _WINDOW_S}
        return {
            rank: {
                key: round(fmean(step[rank][key] for step in self._steps.values() if rank in step), 7)
                for key in (f"{part}_s" for part in PARTS)
            }
            for rank in self._steps[latest["at"]]
        }


def _machine(node: NodeStatus, status: ClusterStatus, step: Mapping[str, float] | None) -> _JsonObject:
    nodes = status.nodes
    return {
        "name": node.name,
        "host": node.host,
        "rank": node.rank,
        "state": _state(node, status.ready),
        "why": node.why,
        "left_out_s": math.ceil(node.left_out_s),
        "silent_s": 0 if node.last_seen_s < 3 else math.floor(node.last_seen_s),  # it is heard now
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
        "fetching": None
        if not node.fetch_total_bytes
        else {
            "done_bytes": node.fetched_bytes,
            "total_bytes": node.fetch_total_bytes,
            "bytes_per_s": node.fetch_bytes_per_s,
        },
        "link": None
        if not node.link_bytes_per_s
        else {"round_trip_s": node.round_trip_s, "bytes_per_s": node.link_bytes_per_s},
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


def _state(node: NodeStatus, ready: bool) -> str:
    """Whether it answers, gets ready to, is not needed ("spare"), may not for a while ("left out"), gives its part up,
    has given it up, waits for a plan, or is away."""
    if node.state in _SAME:
        return node.state
    if node.state == "ready" or (ready and node.rank is not None):  # it may fetch for the next plan meanwhile
        return "serving"
    return "loading" if node.state in _LOADING else "waiting"


def _part(units: tuple[int, int], of: int) -> float:
    return round((units[1] - units[0]) / of, 4) if of else 0.0


def _memory(node: NodeStatus) -> _JsonObject:
    """`budget_bytes` 0: not limited. What the plan gives and the node does not say yet is 0."""
    stats = node.counters
    weights, window, kv, reserved, program, peak = node.weight_bytes, 0, 0, 0, 0, 0
    if stats is not None:
        weights, window, kv = stats.weight_bytes, stats.window_bytes, stats.kv_bytes
        reserved, peak = stats.kv_reserved_bytes, stats.peak_rss_bytes
        program = max(0, node.planned_bytes - node.weight_bytes - reserved)
    # While the cache is not full, weights use its room.
    borrowed = max(0, weights - node.weight_bytes)
    return {
        "budget_bytes": node.memory_bytes,
        "planned_bytes": node.planned_bytes,
        "pinned_bytes": max(0, weights - window),
        "window_bytes": window,
        "kv_bytes": kv,
        "kv_room_bytes": max(0, reserved - kv - borrowed),
        "kv_reserved_bytes": reserved,
        "program_bytes": program,
        "free_bytes": max(0, node.memory_bytes - node.planned_bytes) if node.memory_bytes else 0,
        "peak_rss_bytes": peak,
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
    shown, reading = asdict(line), line.reading
    del shown["client"]
    if reading is not None:
        left_s = None if reading.left_s is None else math.ceil(reading.left_s)
        shown["reading"] |= {"tokens_per_s": round(reading.tokens_per_s, 3), "left_s": left_s}
    return shown | {
        "sender": None if sender is None else asdict(sender),
        "age_s": None if line.age_s is None else math.floor(line.age_s),
        "tokens_per_s": round(line.tokens_per_s, 3),
        "paused_s": math.floor(line.paused_s),
    }


def _totals(status: ClusterStatus, before: _Look, look: _Look) -> _JsonObject:
    totals, spent_s = status.totals, look.at - before.at
    head = next((node.counters for node in status.nodes if node.rank == 0), None)
    rate = round((look.tokens - before.tokens) / spent_s, 3) if spent_s >= _SHORTEST_S else None
    of_head = ("drafted", "accepted", "kv_pages", "kv_pages_used")
    return {
        "running": status.running,
        "queued": status.queued,
        "tokens_per_s": rate,
        **{name: 0 if head is None else getattr(head, name) for name in of_head},
        **asdict(totals),
    }


def _rate(node: NodeStatus, field: str) -> float | None:
    """Bytes per second; None where that is not known."""
    counted = node.counted
    if counted is None or counted.spent_s < 0.5:
        return None
    more: float = getattr(counted.latest, field) - getattr(counted.first, field)
    return round(max(0.0, more) / counted.spent_s)
