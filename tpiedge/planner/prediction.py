"""Predicts a decode step's time on given machines: every node's weights and two all-reduces per layer.

Among three or more nodes, an all-reduce takes the slowest link's round trip. For each worker it also takes the time to
send and to receive a row (one token's hidden state). Between two nodes, it takes half a round trip and the time to send
a row.
"""

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
    """A machine that offers itself. In a list, the master's machine must be first."""

    disk_bytes_per_s: float | None = 0.0  # 0: not measured
    name: str = ""
    round_trip_s: float = 0.0  # of the link to the master
    #: The rate of the link to the master. None: no limit.
    link_bytes_per_s: float | None = None


def predict(
    model: ModelFacts, machines: Sequence[MachineFacts], weights: Sequence[ShareWeight] | None = None
) -> Plan | Infeasible:
    """Plans shares by `weights`; None chooses the fastest shares. Predicts the times of a step with one token."""
    plan = solve(model, machines) if weights is None else evaluate(model, machines, weights)
    if isinstance(plan, Infeasible):
        names = re.sub(r"\bnode (\d+)\b", lambda found: machines[int(found[1])].name, plan.reason)
        return Infeasible(names)
    return replace(plan, reduce_s=_reduce_s(model, machines))


def without_idle(
    model: ModelFacts, machines: Sequence[MachineFacts], plan: Plan, busy: Sequence[int]
) -> Plan:
    """Returns `plan` with only the ranks `busy`, whose machines are `machines`."""
    shares, needs = tuple(plan.shares[rank] for rank in busy), tuple(plan.needs[rank] for rank in busy)
    return replace(plan, shares=shares, needs=needs, reduce_s=_reduce_s(model, machines))


def least_step_s(
    model: ModelFacts, machines: Sequence[MachineFacts], bounds: Sequence[Bound]
) -> float | None:
    """Returns a lower bound of the step's time, or None if the model does not fit."""
    found = fractions(bounds)
    if found is None:
        return None
    return found[1] + head_seconds(model, machines[0]) + _reduce_s(model, machines)


def _reduce_s(model: ModelFacts, machines: Sequence[MachineFacts]) -> float:
    workers = machines[1:]
    if not workers:
        return 0.0
    rates = [worker.link_bytes_per_s for worker in workers if worker.link_bytes_per_s]
    row_s, inputs_s = (sum(one / rate for rate in rates) for one in (model.row_bytes, model.input_bytes))
    round_trip_s = max(worker.round_trip_s for worker in workers)
    rows_s = row_s if len(workers) == 1 else 2 * row_s
    once_s = round_trip_s / 2 + rows_s if len(workers) == 1 else round_trip_s + rows_s
    return model.exchanges * once_s + model.second_sums * rows_s + inputs_s


def measured(machines: Sequence[MachineFacts]) -> list[MachineFacts]:
    """Returns the machines. A machine that was not measured gets the median speed."""
    known = [machine.speed for machine in machines if machine.speed > 0]
    usual = statistics.median(known) if known else 1e9
    speeds = [one.speed if one.speed > 0 else usual for one in machines]
    return [
        replace(one, speed=speed, disk_bytes_per_s=one.disk_bytes_per_s or _USUAL_DISK)
        for one, speed in zip(machines, speeds, strict=True)
    ]
