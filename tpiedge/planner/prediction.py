"""Predicts how long a decode step takes on given machines: every node's weights and two all-reduces per layer.

An all-reduce of three and more nodes goes to rank 0 and back: one round trip of the slowest link, and a row per worker
each way through rank 0. Two nodes exchange their rows: half a round trip.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpiedge.planner.fractions import Bound, fractions, node_bound
from tpiedge.planner.needs import Infeasible, ModelFacts, NodeFacts, head_seconds
from tpiedge.planner.solve import Plan, ShareWeight, evaluate, solve

#: Bytes per second of a disk that was not measured.
_USUAL_DISK = 2e8


@dataclass(frozen=True)
class MachineFacts(NodeFacts):
    """A machine that offers itself; the first of several is the master's own. Speeds are in bytes per second, 0: not
    measured. `free_disk_bytes` includes the model's shards already there. The link is the one to the master: seconds
    per round trip and bytes per second (0 for the master; None: no limit)."""

    disk_bytes_per_s: float | None = 0.0
    name: str = ""
    round_trip_s: float = 0.0
    link_bytes_per_s: float | None = None


def predict(
    model: ModelFacts, machines: Sequence[MachineFacts], weights: Sequence[ShareWeight] | None = None
) -> Plan | Infeasible:
    """The plan of exactly these `measured` machines, in seconds of a step with one token; shares by speed or by
    `weights`."""
    plan = solve(model, machines) if weights is None else evaluate(model, machines, weights)
    if isinstance(plan, Infeasible):
        names = re.sub(r"\bnode (\d+)\b", lambda found: machines[int(found[1])].name, plan.reason)
        return Infeasible(names)
    return replace(plan, reduce_s=_reduce_s(model, machines))


def without_idle(
    model: ModelFacts, machines: Sequence[MachineFacts], plan: Plan, busy: Sequence[int]
) -> Plan:
    """The same plan of the `busy` ranks (`machines`) alone: the others have no share in it."""
    shares, needs = tuple(plan.shares[rank] for rank in busy), tuple(plan.needs[rank] for rank in busy)
    return replace(plan, shares=shares, needs=needs, reduce_s=_reduce_s(model, machines))


def machine_bounds(model: ModelFacts, machines: Sequence[MachineFacts]) -> list[Bound]:
    """The bounds of the `measured` machines, the first as the master's own."""
    return [node_bound(model, min(index, 1), machine) for index, machine in enumerate(machines)]


def least_step_s(
    model: ModelFacts, machines: Sequence[MachineFacts], bounds: Sequence[Bound]
) -> float | None:
    """A lower bound of every prediction with shares by speed; None if the machines cannot hold the model. Cheap."""
    found = fractions(bounds)
    if found is None:
        return None
    return found[1] + head_seconds(model, machines[0]) + _reduce_s(model, machines)


def _reduce_s(model: ModelFacts, machines: Sequence[MachineFacts]) -> float:
    workers = machines[1:]
    if not workers:
        return 0.0
    row_s = sum(model.row_bytes / worker.link_bytes_per_s for worker in workers if worker.link_bytes_per_s)
    round_trip_s = max(worker.round_trip_s for worker in workers)
    once_s = round_trip_s / 2 + row_s if len(workers) == 1 else round_trip_s + 2 * row_s
    return 2 * model.num_layers * once_s


def measured(machines: Sequence[MachineFacts]) -> list[MachineFacts]:
    """The machines with speeds: one that has not measured itself counts as the median of the others."""
    known = [machine.speed for machine in machines if machine.speed > 0]
    usual = statistics.median(known) if known else 1e9
    return [
        replace(
            machine,
            speed=machine.speed if machine.speed > 0 else usual,
            disk_bytes_per_s=machine.disk_bytes_per_s or _USUAL_DISK,
        )
        for machine in machines
    ]
