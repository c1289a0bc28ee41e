"""What the steady-state analysis says of a measured setting (tpiedge.lab.steady_state)."""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from tpiedge.lab.bench.streaming import NodeSample, Sample
from tpiedge.lab.steady_state import (
    PaperTimes,
    Sides,
    Streaming,
    peak_window_bytes,
    retention_period,
    steady_placement,
    streaming,
)
from tpiedge.memory.pinning import Placement
from tpiedge.memory.sweep import Block, Sweep
from tpiedge.pack.reader import Pack

_WINDOW = 2


def paper_window_bytes(pack: Pack, sweep: Sweep) -> int:
    """What the paper's window of two whole blocks takes of a node's weights; a master's embedding and head are blocks
    as well (equations 7 and 8)."""
    layers = [
        sum(piece.nbytes for piece in pieces)
        for block, pieces in sweep.blocks.items()
        if isinstance(block, Block)
    ]
    if not sweep.head_tiles:
        return peak_window_bytes(layers, _WINDOW)
    embedding = pack.layout("embedding").matrix("embedding").nbytes
    return peak_window_bytes([embedding, *layers, sweep.nbytes - sum(layers)], _WINDOW)


def steady_record(
    held: Sequence[tuple[Sweep, Placement]], samples: Sequence[Sample], disk_bytes_per_s: float
) -> list[dict[str, Any]]:
    """The record of each node.

    They share the disk in proportion to what they stream, and one that read faster than that, while it read, is
    believed. An all-reduce that waits for another node's reads counts as time to read in.
    """
    streamed = [sweep.nbytes - _pinned_bytes(sweep, placement) for sweep, placement in held]
    total = sum(streamed)
    return [
        _node(sweep, placement, samples, rank, disk_bytes_per_s * (own / total if own else 1 / len(held)))
        for rank, ((sweep, placement), own) in enumerate(zip(held, streamed, strict=True))
    ]


def _node(
    sweep: Sweep, placement: Placement, samples: Sequence[Sample], rank: int, disk_bytes_per_s: float
) -> dict[str, Any]:
    work_s = _work(sweep, samples, rank)
    disk_bytes_per_s = max(disk_bytes_per_s, _own_bytes_per_s(samples, rank))
    node = streaming(sweep.sizes, work_s, placement, disk_bytes_per_s)
    measured_s = median(sample.nodes[rank].stall_s for sample in samples)
    load_s = median(sample.nodes[rank].load_s for sample in samples)
    times = _paper_times(sweep, samples, rank, disk_bytes_per_s)
    return {
        "rank": rank,
        "blocks": len(sweep.blocks),
        "weights_bytes": sweep.nbytes,
        "pinned_bytes": _pinned_bytes(sweep, placement),
        "ring_bytes": placement.ring_bytes,
        "disk_bytes_per_s": disk_bytes_per_s,
        "sweep": _sides(node.sweep),
        "stretch": _sides(node.stretch),
        "loose": node.loose,
        "tight": _sides(node.tight),
        "predicted_stall_s_per_token": node.stall_s,
        "measured_stall_s_per_token": measured_s,
        "predicted_stall_s_per_block": node.stall_s / len(sweep.blocks),
        "measured_stall_s_per_block": measured_s / len(sweep.blocks),
        "predicted_hidden": node.hidden,
        "measured_hidden": max(0.0, 1 - measured_s / load_s) if load_s else 1.0,
        "paper": _paper(times),
        "retention_period": retention_period(times),
        "steady": _steady(sweep, work_s, node),
    }


def _own_bytes_per_s(samples: Sequence[Sample], rank: int) -> float:
    """While at least one read was under way: less than the disk can do where the node had no room for more."""
    nodes = [sample.nodes[rank] for sample in samples]
    return median(node.streamed_bytes / node.load_s if node.load_s else 0.0 for node in nodes)


def _work(sweep: Sweep, samples: Sequence[Sample], rank: int) -> list[float]:
    """Seconds of each block with its all-reduce, without waiting for weights. What a token takes beside the layers is
    the head's, or comes after the last block where there is none."""
    layers = len(sweep.blocks) - len(sweep.head_tiles)
    attention_s, ffn_s, reduce_s = (
        median(getattr(sample.nodes[rank], name) for sample in samples)
        for name in ("attention_s", "ffn_s", "reduce_s")
    )
    rest_s = median(_rest(sample.s_per_token, sample.nodes[rank]) for sample in samples)
    kinds = {"attention": attention_s, "ffn": ffn_s}
    work_s = [
        (2 * kinds[block.kind] + reduce_s) / layers if isinstance(block, Block) else 0.0
        for block in sweep.blocks
    ]
    last = len(sweep.head_tiles) or 1
    return [*work_s[:-last], *(own_s + rest_s / last for own_s in work_s[-last:])]


def _rest(s_per_token: float, node: NodeSample) -> float:
    return max(0.0, s_per_token - node.attention_s - node.ffn_s - node.reduce_s - node.stall_s)


def _paper_times(sweep: Sweep, samples: Sequence[Sample], rank: int, disk_bytes_per_s: float) -> PaperTimes:
    """The means of the layers; loads of whole blocks, as if nothing were pinned."""
    nodes = [sample.nodes[rank] for sample in samples]
    layers = (len(sweep.blocks) - len(sweep.head_tiles)) / 2
    loads = {
        kind: fmean(
            sum(piece.nbytes for piece in pieces)
            for block, pieces in sweep.blocks.items()
            if isinstance(block, Block) and block.kind == kind
        )
        / disk_bytes_per_s
        for kind in ("attention", "ffn")
    }
    return PaperTimes(
        attention_s=median(node.attention_s for node in nodes) / layers,
        ffn_s=median(node.ffn_s for node in nodes) / layers,
        reduce_s=median(node.reduce_s for node in nodes) / layers / 2,
        attention_load_s=loads["attention"],
        ffn_load_s=loads["ffn"],
    )


def _paper(times: PaperTimes) -> dict[str, Any]:
    return {
        "attention_s": times.attention_s,
        "ffn_s": times.ffn_s,
        "reduce_s": times.reduce_s,
        "attention_load_s": times.attention_load_s,
        "ffn_load_s": times.ffn_load_s,
        "layer": _sides(times.layer),
        "ffn_covered": _sides(times.ffn_covered),
        "attention_covered": _sides(times.attention_covered),
        "loose": times.loose,
        "tight": times.tight,
    }


def _steady(sweep: Sweep, work_s: Sequence[float], node: Streaming) -> dict[str, Any]:
    """The least memory for weights that would reach the steady state at this speed of the disk."""
    found = steady_placement(sweep.sizes, work_s, node.disk_bytes_per_s)
    pinned = _pinned_bytes(sweep, found)
    return {
        "weight_bytes": found.ring_bytes + pinned,
        "pinned_bytes": pinned,
        "pinned_share": pinned / sweep.nbytes if sweep.nbytes else 0.0,
    }


def _pinned_bytes(sweep: Sweep, placement: Placement) -> int:
    return placement.pinned_bytes([piece.nbytes for piece in sweep.pieces])


def _sides(sides: Sides) -> dict[str, Any]:
    return {"work_s": sides.work_s, "load_s": sides.load_s, "holds": sides.holds}
