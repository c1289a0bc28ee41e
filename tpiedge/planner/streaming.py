"""How a node holds weights of which not all fit: what stays, and the ring that the others pass through."""

from dataclasses import dataclass, replace

from tpiedge.memory.pinning import TooSmall, place
from tpiedge.memory.sweep import Sweep
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare
from tpiedge.planner.solve import Infeasible, NodeNeed
from tpiedge.units import format_bytes
from tpiedge.wire.control import WeightMemory
from tpiedge.wire.fields import Pin

__all__ = ["Keeping", "held"]


@dataclass(frozen=True)
class Keeping:
    """What the user wants: how much is pinned, the size of the ring in blocks (of the largest size) or in bytes, and
    whether reads go past the page cache."""

    pin: Pin = "auto"
    window_blocks: int | None = None
    window_bytes: int | None = None
    direct: bool = True


def held(
    pack: Pack, rank: int, share: NodeShare, need: NodeNeed, memory_bytes: int | None, keeping: Keeping
) -> NodeNeed | Infeasible:
    """`need`, which is that of all weights in memory, made to fit `memory_bytes`; or the least that would work."""
    sweep = Sweep.of(pack, share, rank == 0)
    sizes, everything = sweep.sizes, sweep.nbytes
    fixed = need.total_bytes - everything  # vectors, KV cache, program
    room = everything if memory_bytes is None else min(everything, memory_bytes - fixed)
    window = keeping.window_bytes
    if keeping.window_blocks is not None:
        window = keeping.window_blocks * max(map(sum, sizes))
    if window is not None:
        window = min(window, everything)
    found = place(sizes, room, keeping.pin, window)
    if isinstance(found, TooSmall):
        return Infeasible(
            f"node {rank} needs at least {format_bytes(fixed + found.smallest_bytes)} (weights "
            f"{format_bytes(found.smallest_bytes)} of {format_bytes(everything)}, KV cache "
            f"{format_bytes(need.kv_bytes)}, program {format_bytes(need.base_bytes)})"
            + (f" but may use {format_bytes(memory_bytes)}" if memory_bytes is not None else "")
        )
    kept = found.nbytes([piece.nbytes for piece in sweep.pieces])
    return replace(
        need,
        weight_bytes=need.weight_bytes - everything + kept,
        weights=WeightMemory(room, window or 0, keeping.pin, keeping.direct),
    )
