"""A cluster of three machines and a spare one, as the pictures of its view show it: always the same."""

from dataclasses import replace
from typing import Final

from msgspec import structs

from tests.fakes.service import FakeService
from tpiedge.master.counters import Counted, StepTimeline
from tpiedge.master.history import ClusterEvent
from tpiedge.master.journal import RequestLine
from tpiedge.master.status import NodeStatus
from tpiedge.wire.control import Stats, StepSpans, WorkerLink

_MIB: Final = 1 << 20
_AT: Final = 1.7e9
_NOTHING: Final = Stats(*(0 for _ in Stats.__struct_fields__))
#: Rank 0 begins a step and ends it, in microseconds; between, each layer takes 17 ms on its slowest machine and 5 ms of
#: the network.
_BEGIN, _LAYER, _END = 3000, 22_000, 9000
#: What each machine does in each layer: for how long it computes, and then waits for its disk, in microseconds.
_WORK: Final = (
    ((17_000, 0), (8000, 0), (17_000, 0), (7000, 0)),
    ((8000, 0), (7500, 0), (8000, 0), (7500, 0)),
    ((7000, 4000), (7000, 10_000), (7000, 0), (7000, 10_000)),
)


def watch(service: FakeService) -> None:
    spans = tuple(map(_spans, range(len(_WORK))))
    service.called = "TinyLlama-1.1B"
    service._nodes = (
        _node("master", "", (0, 16), (0, 22), spans[0]),
        _node("w-5f0c", "ann", (16, 24), (22, 33), spans[1]),
        _node("w-91d2", "bob", (24, 32), (33, 44), spans[2]),
        replace(
            _node("w-c3a7", "carol", (0, 0), (0, 0), None),
            state="spare",
            why="answers would be slower with it",
        ),
    )
    service.lines = (
        RequestLine(
            "chatcmpl-5b1ef0a9c3d24e77",
            "answering",
            41.0,
            212,
            96,
            512,
            9.8,
            "",
            0.0,
            True,
            None,
            "192.0.2.20",
        ),
        RequestLine(
            "chatcmpl-77f3260b9d15ca08", "queued", 3.0, 1830, 0, 256, 0.0, "", 0.0, True, None, "192.0.2.31"
        ),
    )
    service.told = (
        ClusterEvent(_AT + 9, "recovered", "", ""),
        ClusterEvent(_AT + 8, "planned", "", "3 machines"),
        ClusterEvent(_AT + 2, "lost", "dave", "silent for 1.6 s"),
        ClusterEvent(_AT, "joined", "carol", ""),
    )
    service.links = (WorkerLink(1, 2, 0.0009),)
    service.recorded = StepTimeline(0, _AT, spans)


def _spans(rank: int) -> StepSpans:
    begins = range(_BEGIN, _BEGIN + len(_WORK[rank]) * _LAYER, _LAYER)
    layers = [
        (begun, begun + computes, waits) for begun, (computes, waits) in zip(begins, _WORK[rank], strict=True)
    ]
    compute = [(begun, computed) for begun, computed, _ in layers]
    disk = [(computed, computed + waits) for _, computed, waits in layers if waits]
    reduce = [(computed + waits, begun + _LAYER) for begun, computed, waits in layers]
    if rank == 0:
        ended = begins[-1] + _LAYER
        compute = [(0, _BEGIN - 1000), *compute, (ended, ended + _END)]
        reduce = [(_BEGIN - 1000, _BEGIN), *reduce]
    return StepSpans(0, rank, 1204, 1, tuple(compute), tuple(reduce), tuple(disk))


def _node(
    name: str, host: str, heads: tuple[int, int], tiles: tuple[int, int], spans: StepSpans | None
) -> NodeStatus:
    """`spans`: of each of its steps; None where it has no part."""
    weights = 30 * _MIB * (heads[1] - heads[0])
    counted = None
    if spans is not None:
        first = structs.replace(
            _NOTHING, weight_bytes=weights, window_bytes=weights // 4 if spans.disk else 0, kv_bytes=24 * _MIB,
            kv_reserved_bytes=96 * _MIB, kv_pages=64, kv_pages_used=16,
        )  # fmt: skip
        compute_s, reduce_s, disk_s = (
            sum(end - begun for begun, end in part) * 1e-6
            for part in (spans.compute, spans.reduce, spans.disk)
        )
        last = structs.replace(
            first, steps=1, compute_s=compute_s, reduce_wait_s=reduce_s, weight_wait_s=disk_s,
            disk_read_bytes=int(2e9 * disk_s),
        )  # fmt: skip
        counted = Counted(last, first, 1.0)
    return NodeStatus(
        name, None if spans is None else spans.rank, "ready", heads, tiles, threads=2, memory_bytes=1024 * _MIB,
        speed=9e9, weight_bytes=weights, last_seen_s=0.0, host=host, counted=counted,
        disk_bytes=weights if host else 0, stocked=name == "w-5f0c", planned_bytes=weights + 400 * _MIB,
        round_trip_s=0.0006 if host else 0.0, link_bytes_per_s=1.1e8 if host else 0.0,
    )  # fmt: skip
