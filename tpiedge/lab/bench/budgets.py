"""The memory settings that `tpiedge bench memory` compares: from names and sizes to plans."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tpiedge.errors import OutOfMemory, UserError
from tpiedge.local.launch import Layout, plan_cluster
from tpiedge.local.prepare import PreparedModel
from tpiedge.memory.pinning import Placement, placed
from tpiedge.memory.sweep import Sweep
from tpiedge.planner.solve import Plan
from tpiedge.units import MIB, parse_bytes
from tpiedge.wire.weights import Keeping


@dataclass(frozen=True)
class Budget:
    """One setting: what was asked for, and the plan of it."""

    name: str
    layout: Layout
    plan: Plan

    @property
    def nbytes(self) -> int:
        """The limit of every node, or where there is none what the largest node is predicted to take."""
        if self.layout.memory_bytes is not None:
            return self.layout.memory_bytes
        return max(need.total_bytes for need in self.plan.needs)

    def held(self, model: PreparedModel) -> list[tuple[Sweep, Placement]]:
        """What each node reads in a sweep, and what of it stays in memory."""
        sweeps = [Sweep.of(model.pack, share, rank == 0) for rank, share in enumerate(self.plan.shares)]
        pairs = zip(sweeps, self.plan.needs, strict=True)
        return [(sweep, placed(need.weights, sweep)) for sweep, need in pairs]

    def streams(self, model: PreparedModel) -> bool:
        """Whether any weights pass through a ring."""
        return any(len(placement.pinned) < len(sweep.pieces) for sweep, placement in self.held(model))


def budgets(text: str, model: PreparedModel, layout: Layout, capacity: int) -> list[Budget]:
    """The settings of `--budgets`, the smallest first. Raises UserError, or OutOfMemory for one that cannot work."""
    names = dict.fromkeys(item.strip().lower() for item in text.split(","))
    found = [_budget(name, model, layout, capacity) for name in names]
    return sorted(found, key=lambda budget: budget.nbytes)


def whole(model: PreparedModel, layout: Layout, capacity: int) -> Budget:
    """Everything in memory. Raises OutOfMemory where this computer is too small."""
    return _planned("all", model, replace(layout, keeping=Keeping(pin="all")), capacity)


def smallest_budget(model: PreparedModel, layout: Layout, capacity: int) -> int:
    """The least memory per node, in whole MiB, with which a cluster works."""

    def works(nbytes: int) -> bool:
        try:
            plan_cluster(model, replace(layout, memory_bytes=nbytes), capacity)
        except OutOfMemory:
            return False
        return True

    return least(works, _window(model, layout, capacity).nbytes)


def least(works: Callable[[int], bool], enough: int) -> int:
    """The least whole number of MiB that works; `enough` bytes do, and more than what works works too."""
    low, high = 0, -(-enough // MIB)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if works(middle * MIB) else (middle, high)
    return high * MIB


def _budget(name: str, model: PreparedModel, layout: Layout, capacity: int) -> Budget:
    if name == "window":
        return _window(model, layout, capacity)
    if name == "all":
        return whole(model, layout, capacity)
    return _planned(name, model, replace(layout, memory_bytes=_size(name, model, layout, capacity)), capacity)


def _window(model: PreparedModel, layout: Layout, capacity: int) -> Budget:
    return _planned("window", model, replace(layout, keeping=Keeping(pin="none")), capacity)


def _size(name: str, model: PreparedModel, layout: Layout, capacity: int) -> int:
    """Bytes per node."""
    if name == "min":
        return smallest_budget(model, layout, capacity)
    if not name.endswith("%"):
        return parse_bytes(name)
    part = _percent(name)
    low = smallest_budget(model, layout, capacity)
    return low + int(part * (whole(model, layout, capacity).nbytes - low))


def _percent(name: str) -> float:
    try:
        part = int(name.removesuffix("%")) / 100
    except ValueError:
        part = -1.0
    if not 0 <= part <= 1:
        raise UserError(f"--budgets {name!r}: write a part of the way from min to all as 0% to 100%")
    return part


def _planned(name: str, model: PreparedModel, layout: Layout, capacity: int) -> Budget:
    return Budget(name, layout, plan_cluster(model, layout, capacity))
