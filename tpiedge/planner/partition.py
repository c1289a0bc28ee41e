"""Cutting every layer into one share per node (TPI-LLM, section 3.1).

Attention and FFN are cut independently. Attention cuts fall on the borders of KV heads unless more nodes take part
than there are KV heads; then they fall on query heads and a KV head is replicated on the nodes that share it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpiedge.errors import UserError
from tpiedge.pack.share import NodeShare, Share
from tpiedge.units import counted


@dataclass(frozen=True)
class LayerShape:
    """The units of a layer: `heads` query heads over `kv_heads` KV heads, and `ffn_tiles` tiles of the FFN."""

    heads: int
    kv_heads: int
    ffn_tiles: int

    @property
    def group_size(self) -> int:
        """Query heads that use one KV head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class ShareWeight:
    """Relative weight of one node in the attention and in the FFN; any scale, zero for none."""

    attention: float
    ffn: float


def apportion(weights: Sequence[float], units: int) -> list[int]:
    """Divide `units` in proportion to `weights` by largest remainder; the lower index wins a tie.

    The weights are finite, not negative and not all zero. A node of weight zero gets nothing.
    """
    total = math.fsum(weights)
    quotas = [weight / total * units for weight in weights]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(
        (index for index, weight in enumerate(weights) if weight > 0),
        key=lambda index: (counts[index] - quotas[index], index),
    )
    missing = units - sum(counts)
    for index in by_remainder[:missing]:
        counts[index] += 1
    return counts


def apportion_within(
    weights: Sequence[float], units: int, most: Callable[[int, int], int]
) -> list[int] | None:
    """Apportions as `apportion`, but no node gets more than fits: `most(index, count)` units of `count`. None if units
    are left over."""
    full: dict[int, int] = {}
    while True:
        free = [0.0 if index in full else weight for index, weight in enumerate(weights)]
        if not any(free):
            return None
        counts = apportion(free, units - sum(full.values()))
        fit = {index: most(index, count) for index, count in enumerate(counts) if count}
        if all(count == counts[index] for index, count in fit.items()):
            return [full.get(index, count) for index, count in enumerate(counts)]
        full |= {index: count for index, count in fit.items() if count < counts[index]}


def partition(shape: LayerShape, weights: Sequence[ShareWeight]) -> tuple[NodeShare, ...]:
    """One share per node, in rank order, that together cover every unit exactly once."""
    attention = [weight.attention for weight in weights]
    cut = heads_per_cut(shape, attention)
    counts = [cut * cuts for cuts in apportion(attention, shape.heads // cut)]
    ffn = apportion([weight.ffn for weight in weights], shape.ffn_tiles)
    return tuple(map(NodeShare, intervals(counts), intervals(ffn)))


def heads_per_cut(shape: LayerShape, weights: Sequence[float]) -> int:
    """Query heads between two places where attention may be cut: a KV head's, or one if those do not suffice."""
    takers = sum(weight > 0 for weight in weights)
    return 1 if takers > shape.kv_heads else shape.group_size


def intervals(counts: Sequence[int]) -> list[Share]:
    """Adjacent shares of these sizes, from unit 0 on."""
    stops = [sum(counts[: index + 1]) for index in range(len(counts))]
    return [Share(stop - count, stop) for count, stop in zip(counts, stops, strict=True)]


def parse_shares(text: str, nodes: int) -> tuple[ShareWeight, ...]:
    """'3,1,2' -> three weights; 'a:f' gives a node different weights in attention and FFN ('0:2': FFN only).

    Raises UserError for a wrong count, what is not a number, a negative number, or nothing but zeros.
    """
    items = text.split(",")
    if len(items) != nodes:
        given, wanted = counted(len(items), "weight"), counted(nodes, "node")
        raise UserError(f"--shares {text!r} gives {given} for {wanted}: give one per node")
    weights = tuple(_parse_weight(item, text) for item in items)
    for part, values in (("attention", [w.attention for w in weights]), ("FFN", [w.ffn for w in weights])):
        if not any(values):
            raise UserError(
                f"--shares {text!r} leaves the {part} to nobody: at least one weight must be above 0"
            )
    return weights


def _parse_weight(item: str, text: str) -> ShareWeight:
    parts = item.split(":")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2:
        raise UserError(
            f"--shares {text!r}: {item.strip()!r} is not a weight; write numbers like 3,1,2 or 1,0:2"
        )
    if any(not math.isfinite(number) or number < 0 or number > 1e9 for number in numbers):
        raise UserError(f"--shares {text!r}: {item.strip()!r} is out of range; weights are from 0 to 1e9")
    return ShareWeight(numbers[0], numbers[-1])
