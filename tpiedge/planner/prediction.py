"""How long a decode step takes on given machines.

It costs every node its part of the weights (`solve`), and the cluster two allreduces per layer. An allreduce of three
and more nodes goes to rank 0 and back: one round trip of the slowest link, and a row per worker each way through
rank 0. Two nodes exchange their rows: half a round trip.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tpiedge.planner.fractions import Bound, fractions, node_bound
from tpiedge.planner.needs import Infeasible, ModelFacts, NodeFacts, head_seconds
from tpiedge.planner.solve import Plan, ShareWeight, evaluate, solve
from tpiedge.wire.weights import Keeping

#: Bytes per second of a disk that was not measured.
_USUAL_DISK = 2e8


@dataclass(frozen=True)
class MachineFacts:
    """A machine that offers itself; the first of several is the master's own. `weight_bytes_per_s` is that with weights
    such as the model's layers (0: not measured); `head_bytes_per_s` that with weights such as its LM head, of the
    master's own (0: as with the layers). `free_disk_bytes` includes what the model's shards take there already. The
    link is the one to the master: seconds per round trip and bytes per second, 0 for the master itself; None: no limit.
    Weights that do not fit in its memory stream at `disk_bytes_per_s` (0: not measured), if `keeping` admits it."""

    name: str
    weight_bytes_per_s: float
    memory_bytes: int | None = None
    free_disk_bytes: int | None = None
    round_trip_s: float = 0.0
    link_bytes_per_s: float | None = None
    disk_bytes_per_s: float = 0.0
    keeping: Keeping = field(default_factory=Keeping)
    head_bytes_per_s: float = 0.0


@dataclass(frozen=True)
class Demand:
    """What is to be served: room for `capacity_tokens`, `min_workers` machines beside the master's at least, in the
    plan as well, whatever their links cost."""

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
    """The step if exactly these machines take part, with shares by speed or by `weights`."""
    nodes = node_facts(machines)
    if weights is None:
        plan = solve(demand.model, nodes, demand.capacity_tokens)
    else:
        plan = evaluate(demand.model, nodes, weights, demand.capacity_tokens)
    if isinstance(plan, Infeasible):
        names = re.sub(r"\bnode (\d+)\b", lambda found: machines[int(found[1])].name, plan.reason)
        return Infeasible(names)
    return Prediction(plan, 2 * demand.model.num_layers * _all_reduce_s(demand, machines))


def without_idle(
    demand: Demand, machines: Sequence[MachineFacts], prediction: Prediction, busy: Sequence[int]
) -> Prediction:
    """The same plan of the `busy` ranks alone, which are those of `machines`: the others have no share in it."""
    plan = prediction.plan
    shares, needs = tuple(plan.shares[rank] for rank in busy), tuple(plan.needs[rank] for rank in busy)
    reduce_s = 2 * demand.model.num_layers * _all_reduce_s(demand, machines)
    return Prediction(replace(plan, shares=shares, needs=needs), reduce_s)


def machine_bounds(demand: Demand, machines: Sequence[MachineFacts]) -> list[Bound]:
    """What each of the machines can take, the first as the master's own."""
    return [
        node_bound(demand.model, min(index, 1), node, demand.capacity_tokens)
        for index, node in enumerate(node_facts(machines))
    ]


def least_step_s(demand: Demand, machines: Sequence[MachineFacts], bounds: Sequence[Bound]) -> float | None:
    """What no prediction of machines of such `machine_bounds` with shares by speed is below; None where there is none.
    Costs little."""
    found = fractions(bounds)
    if found is None:
        return None
    reduce_s = 2 * demand.model.num_layers * _all_reduce_s(demand, machines)
    return found[1] + head_seconds(demand.model, node_facts(machines[:1])[0]) + reduce_s


def _all_reduce_s(demand: Demand, machines: Sequence[MachineFacts]) -> float:
    workers = machines[1:]
    if not workers:
        return 0.0
    row_s = sum(
        demand.model.row_bytes / worker.link_bytes_per_s for worker in workers if worker.link_bytes_per_s
    )
    round_trip_s = max(worker.round_trip_s for worker in workers)
    return round_trip_s / 2 + row_s if len(workers) == 1 else round_trip_s + 2 * row_s


def node_facts(machines: Sequence[MachineFacts]) -> list[NodeFacts]:
    """The machines as the planner's nodes, in rank order."""
    return [
        NodeFacts(
            machine.weight_bytes_per_s,
            machine.memory_bytes,
            machine.free_disk_bytes,
            machine.disk_bytes_per_s or _USUAL_DISK,
            machine.keeping,
            head_speed=machine.head_bytes_per_s or None,
        )
        for machine in with_speeds(machines)
    ]


def with_speeds(machines: Sequence[MachineFacts]) -> list[MachineFacts]:
    """A machine that has not measured itself counts as the median of the others."""
    known = [machine.weight_bytes_per_s for machine in machines if machine.weight_bytes_per_s > 0]
    usual = statistics.median(known) if known else 1e9
    return [
        machine if machine.weight_bytes_per_s > 0 else replace(machine, weight_bytes_per_s=usual)
        for machine in machines
    ]
