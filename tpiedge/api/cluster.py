"""`GET /admin/cluster` shows the cluster to `tpiedge top` and the page.

A machine's rates are means between two arrivals of its counters. Tokens per second are a mean between two GETs. Parts
of a step's time are means over the last seconds."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, Final, TypeAlias

from tpiedge.api.timeline import PARTS
from tpiedge.local.service import Service
from tpiedge.master.journal import RequestLine
from tpiedge.master.status import ClusterStatus, NodeStatus

#: Tokens per second are measured over at most this time and at least _SHORTEST_S. Means of steps span this time.
_WINDOW_S: Final = 6.0
_SHORTEST_S: Final = 0.9
_LOADING: Final = ("starting", "joined", "loading", "preparing", "prepared", "fetching")
#: States that the picture shows under the master's names.
_SAME: Final = ("spare", "left out", "draining", "drained", "lost")

_JsonObject: TypeAlias = dict[str, object]


class ClusterPicture:
    """Makes the picture. Not thread-safe. `sender` describes a request's client."""

    def __init__(self, service: Service, sender: Callable[[str], Mapping[str, str] | None]) -> None:
        self._service = service
        self._sender = sender
        self._epoch = 0
        #: (time, tokens since the start until that time) of each look in this epoch.
        self._looks: deque[tuple[float, int]] = deque()
        #: This epoch's steps, keyed by time; a step has its machines, keyed by rank.
        self._steps: dict[float, dict[int, Mapping[str, float]]] = {}

    def of(
        self, status: ClusterStatus, waiting: Sequence[object], timeline: Mapping[str, Any] | None, now: float
    ) -> _JsonObject:
        """Returns the picture at `now`. `timeline`: the result of shown_step."""
        service = self._service
        model, requests, events = service.model(), service.request_lines(), service.events()
        tokens_per_s = self._tokens_per_s(status, now)
        means = {} if timeline is None else self._means(timeline)
        return {
            "object": "tpiedge.cluster",
            "model": {"name": model.name, "context_tokens": model.context_tokens},
            "next": service.packed(status.next_pack).name if status.next_pack else "",
            "asleep": status.asleep,
            "ready": status.ready,
            "reason": status.reason,
            "epoch": status.epoch,
            "collective": {
                "token": status.collective,
                "chunk": status.bulk_collective,
                "why": status.collective_why,
            },
            "split_shows": status.split_shows,
            "machines": [_machine(node, status, _step(node, means), model.ffn_part) for node in status.nodes],
            "timeline": timeline,
            "waiting": waiting,
            "requests": [_request(one, self._sender(one.client)) for one in requests],
            "events": [asdict(one) for one in events],
            "totals": _totals(status, tokens_per_s),
        }

    def _tokens_per_s(self, status: ClusterStatus, now: float) -> float | None:
        looks, tokens = self._looks, status.totals.tokens
        if status.epoch != self._epoch:
            self._epoch = status.epoch
            looks.clear()
            self._steps.clear()
        while looks and now - looks[0][0] > _WINDOW_S:
            looks.popleft()
        if not looks or now - looks[-1][0] >= _SHORTEST_S / 2:  # many looks at once cost no memory
            looks.append((now, tokens))
        begun, before = looks[0]
        return round((tokens - before) / (now - begun), 3) if now - begun >= _SHORTEST_S else None

    def _means(self, latest: Mapping[str, Any]) -> dict[int, dict[str, float]]:
        self._steps[latest["at"]] = {one["rank"]: one for one in latest["machines"]}
        self._steps = {at: one for at, one in self._steps.items() if abs(latest["at"] - at) <= _WINDOW_S}
        return {
            rank: {
                key: round(fmean(step[rank][key] for step in self._steps.values() if rank in step), 7)
                for key in (f"{part}_s" for part in PARTS)
            }
            for rank in self._steps[latest["at"]]
        }


def _machine(
    node: NodeStatus, status: ClusterStatus, step: Mapping[str, float] | None, ffn_part: float
) -> _JsonObject:
    heads = _part(node.attention, max(one.attention[1] for one in status.nodes))
    ffn = _part(node.ffn, max(one.ffn[1] for one in status.nodes))
    return {
        "name": node.name,
        "host": node.host,
        "rank": node.rank,
        "state": _state(node, status.ready),
        "why": node.why,
        "left_out_s": math.ceil(node.left_out_s),
        "silent_s": 0 if node.last_seen_s < 3 else math.floor(node.last_seen_s),
        "heads": list(node.attention),
        "ffn_tiles": list(node.ffn),
        "share": {"work": round(ffn_part * ffn + (1 - ffn_part) * heads, 4), "heads": heads, "ffn": ffn},
        "threads": node.threads,
        "speed_bytes_per_s": node.speed,
        "memory": _memory(node),
        "disk": {
            "held_bytes": node.disk_bytes,
            "read_bytes_per_s": _rate(node, "disk_read_bytes"),
            "kv_read_bytes_per_s": _rate(node, "brought_bytes"),
            "kv_written_bytes_per_s": _rate(node, "left_bytes"),
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
    if node.state in _SAME:
        return node.state
    if node.state == "ready" or (ready and node.rank is not None):  # perhaps it fetches for the next plan
        return "serving"
    return "loading" if node.state in _LOADING else "waiting"


def _part(units: tuple[int, int], of: int) -> float:
    return round((units[1] - units[0]) / of, 4) if of else 0.0


def _memory(node: NodeStatus) -> _JsonObject:
    """Returns amounts of memory in bytes; 0 means unknown. A `budget_bytes` of 0 means no limit."""
    stats = node.counters
    weights, window, kv, reserved, program, peak = node.weight_bytes, 0, 0, 0, 0, 0
    if stats is not None:
        weights, window, kv = stats.weight_bytes, stats.window_bytes, stats.kv_bytes
        reserved, peak = stats.kv_reserved_bytes, stats.peak_rss_bytes
        program = max(0, node.planned_bytes - node.weight_bytes - reserved)
    # Weights may use memory of a KV cache that is not full.
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
    counted = node.counted
    if node.rank is None or counted is None or counted.latest.steps <= counted.first.steps:
        return None
    return means.get(node.rank)


def _request(line: RequestLine, sender: Mapping[str, str] | None) -> _JsonObject:
    """Describes a request. Rounds its times, so that an idle picture stays the same."""
    shown, reading = asdict(line), line.reading
    del shown["client"]  # it would help to guess keys
    if reading is not None:
        left_s = None if reading.left_s is None else math.ceil(reading.left_s)
        shown["reading"] |= {"tokens_per_s": round(reading.tokens_per_s, 3), "left_s": left_s}
    return shown | {
        "sender": sender,
        "age_s": None if line.age_s is None else math.floor(line.age_s),
        "tokens_per_s": round(line.tokens_per_s, 3),
        "paused_s": math.floor(line.paused_s),
    }


def _totals(status: ClusterStatus, tokens_per_s: float | None) -> _JsonObject:
    head = next((node.counters for node in status.nodes if node.rank == 0), None)
    of_head = ("drafted", "accepted", "kv_pages", "kv_pages_used")
    return {
        "running": status.running,
        "queued": status.queued,
        "tokens_per_s": tokens_per_s,
        **{name: 0 if head is None else getattr(head, name) for name in of_head},
        **asdict(status.totals),
    }


def _rate(node: NodeStatus, field: str) -> float | None:
    counted = node.counted
    if counted is None or counted.spent_s < 0.5:
        return None
    more: float = getattr(counted.latest, field) - getattr(counted.first, field)
    return round(max(0.0, more) / counted.spent_s)
