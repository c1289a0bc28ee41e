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


@dataclass(frozen=True)
class Demand:
    """A model to serve with room for `capacity_tokens` and at least `min_workers` machines beside the master's."""

    model: ModelFacts
    capacity_tokens: int
    min_workers: int = 0
    #: What the user calls the model.
    model_name: str = "the model"


@dataclass(frozen=True)
class Prediction:
    """Shares of some machines, and seconds per step with one token."""

    plan: Plan
    reduce_s: float

    @property
    def step_s(self) -> float:
        return self.plan.layers_s + self.plan.head_s + self.reduce_s


def predict(
    demand: Demand, machines: Sequence[MachineFacts], weights: Sequence[ShareWeight] | None = None
) -> Prediction | Infeasible:
    """The step if exactly these `measured` machines take part, with shares by speed or by `weights`."""
    if weights is None:
        plan = solve(demand.model, machines, demand.capacity_tokens)
    else:
        plan = evaluate(demand.model, machines, weights, demand.capacity_tokens)
    if isinstance(plan, Infeasible):
        names = re.sub(r"\bnode (\d+)\b", lambda found: machines[int(found[1])].name, plan.reason)
        return Infeasible(names)
    return Prediction(plan, _reduce_s(demand, machines))


def without_idle(
    demand: Demand, machines: Sequence[MachineFacts], prediction: Prediction, busy: Sequence[int]
) -> Prediction:
    """The same plan of the `busy` ranks (`machines`) alone: the others have no share in it."""
    plan = prediction.plan
    shares, needs = tuple(plan.shares[rank] for rank in busy), tuple(plan.needs[rank] for rank in busy)
    return Prediction(replace(plan, shares=shares, needs=needs), _reduce_s(demand, machines))


def machine_bounds(demand: Demand, machines: Sequence[MachineFacts]) -> list[Bound]:
    """The bounds of the `measured` machines, the first as the master's own."""
    return [
        node_bound(demand.model, min(index, 1), machine, demand.capacity_tokens)
        for index, machine in enumerate(machines)
    ]


def least_step_s(demand: Demand, machines: Sequence[MachineFacts], bounds: Sequence[Bound]) -> float | None:
    """A lower bound of every prediction with shares by speed; None if the machines cannot hold the model. Cheap."""
    found = fractions(bounds)
    if found is None:
        return None
    return found[1] + head_seconds(demand.model, machines[0]) + _reduce_s(demand, machines)


def _reduce_s(demand: Demand, machines: Sequence[MachineFacts]) -> float:
    workers = machines[1:]
    if not workers:
        return 0.0
    row_s = sum(
        demand.model.row_bytes / worker.link_bytes_per_s for worker in workers if worker.link_bytes_per_s
    )
    round_trip_s = max(worker.round_trip_s for worker in workers)
    once_s = round_trip_s / 2 + row_s if len(workers) == 1 else round_trip_s + 2 * row_s
    return 2 * demand.model.num_layers * once_s


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
