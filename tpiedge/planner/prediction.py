"""Predicts a decode step on given machines: every node's weights and two all-reduces per layer. With three or more
nodes, an all-reduce goes through rank 0: it takes the slowest link's round trip, and the time of a row per worker each
way. Two nodes exchange rows in half a round trip."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpiedge.planner.fractions import Bound, fractions
from tpiedge.planner.needs import Infeasible, ModelFacts, NodeFacts, head_seconds
from tpiedge.planner.solve import Plan, ShareWeight, evaluate, solve

_USUAL_DISK = 2e8  # bytes per second of a disk that was not measured


@dataclass(frozen=True)
class MachineFacts(NodeFacts):
    """A machine that offers itself; in a list, the master's must be first. Speeds are in bytes per second (0: not
    measured). `free_disk_bytes` includes the model's shards on the disk. `round_trip_s` and `link_bytes_per_s` (None:
    no limit) describe the link to the master."""

    disk_bytes_per_s: float | None = 0.0
    name: str = ""
    round_trip_s: float = 0.0
    link_bytes_per_s: float | None = None


def predict(
    model: ModelFacts, machines: Sequence[MachineFacts], weights: Sequence[ShareWeight] | None = None
) -> Plan | Infeasible:
    """Makes a plan for `machines` (from `measured`), by `weights` or else by speed. Times are of a one-token step."""
    plan = solve(model, machines) if weights is None else evaluate(model, machines, weights)
    if isinstance(plan, Infeasible):
        names = re.sub(r"\bnode (\d+)\b", lambda found: machines[int(found[1])].name, plan.reason)
        return Infeasible(names)
    return replace(plan, reduce_s=_reduce_s(model, machines))


def without_idle(
    model: ModelFacts, machines: Sequence[MachineFacts], plan: Plan, busy: Sequence[int]
) -> Plan:
    """Returns `plan` with only the `busy` ranks; `machines` must be their machines."""
    shares, needs = tuple(plan.shares[rank] for rank in busy), tuple(plan.needs[rank] for rank in busy)
    return replace(plan, shares=shares, needs=needs, reduce_s=_reduce_s(model, machines))


def least_step_s(
    model: ModelFacts, machines: Sequence[MachineFacts], bounds: Sequence[Bound]
) -> float | None:
    """Returns a lower bound of all step times with shares by speed; None if the machines cannot hold the model."""
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
    """Returns the machines with speeds; an unmeasured machine gets the median speed of measured machines."""
    known = [machine.speed for machine in machines if machine.speed > 0]
    usual = statistics.median(known) if known else 1e9
    speeds = [one.speed if one.speed > 0 else usual for one in machines]
    return [
        replace(one, speed=speed, disk_bytes_per_s=one.disk_bytes_per_s or _USUAL_DISK)
        for one, speed in zip(machines, speeds, strict=True)
    ]
