"""How many bytes are fetched after the loss of a machine, and stocked before it, by where plans place the machines.

    .venv/bin/python -m tools.simulate_losses [--clusters 6] [--seed 1] [--workers 2 3 5 7 15]

Random clusters of unequal machines serve a 70B or a 1.1B shape in q4, with what they serve with on their disks. For
each number of workers it prints, as parts of all layers and on average over the loss of each worker:

- what is lacking after it where nothing was stocked;
- what all disks together have beside what serves, once they hold what the loss of any worker needs;
- what is lacking then after the loss of a second worker, before anything was stocked for that.

Each with the planner's own places, with the best order of ranks, and with the best borders as well. Then by how much
a step is longer with the latter, at most, and how long it takes to place a plan, in milliseconds of one core.
"""

import argparse
import random
import time
from dataclasses import dataclass, field, replace
from typing import Final

from tools.simulate_orders import MODEL, machine
from tpiedge.master.arranging import Arranger
from tpiedge.master.assignments import Assignment, Assignments
from tpiedge.master.placement import OWN_NAME, NodePlacement
from tpiedge.master.roster import Machine
from tpiedge.planner.fractions import whole_bytes
from tpiedge.planner.needs import ModelFacts
from tpiedge.planner.partition import LayerShape, ShareWeight
from tpiedge.planner.prediction import Demand, MachineFacts
from tpiedge.units import GIB

_HEAD, _TILE = 64 * 2048 * 9 // 16, 128 * 2048 * 9 // 16  # q4: a byte of scale for eight of weights
_SMALL = ModelFacts(
    LayerShape(32, 4, 44),
    22,
    (_HEAD,) * 2,
    (_HEAD,) * 2,
    (_TILE,) * 3,
    (_TILE,) * 3,
    0,
    GIB // 16,
    1 << 14,
    64,
)
_SHAPES: Final = {"70B": MODEL, "1.1B": _SMALL}
_PLACES: Final = ("own", "order", "borders")
_COUNTS: Final = (2, 3, 5, 7, 15)


class Planner:
    """Plans with one way to place machines, and what it costs."""

    def __init__(self, model: ModelFacts, places: str, known: dict[frozenset[str], Assignments]) -> None:
        """`known`: what the planner has answered for these machines, by their names."""
        self.model = model
        own = MachineFacts(OWN_NAME, 1e10, 256 * GIB)
        self.placement = NodePlacement(Demand(model, 4096), own, 4)
        self._known = known
        self.serving: tuple[Assignment, ...] = ()
        self.longer, self.busiest_s = 0.0, 0.0
        # With given shares machines keep their amounts.
        given = (ShareWeight(1, 1),)
        arranges = self.placement if places == "borders" else replace(self.placement, weights=given)
        arranger = Arranger(arranges, lambda: [self.serving] if self.serving else [])
        self._placed = None if places == "own" else arranger.over(lambda _machines, _serving: self._found)
        self._found = Assignments(())

    def plan(self, machines: tuple[Machine, ...]) -> tuple[Assignments, int]:
        """The plan, and the bytes that it lacks."""
        names = frozenset(one.name for one in machines)
        if names not in self._known:
            answer = self.placement(machines, ())
            if not isinstance(answer, Assignments):
                raise SystemExit(f"no plan: {answer.reason}")
            self._known[names] = answer
        found = self._known[names]
        self._found, began = found, time.thread_time()
        if self._placed is not None:
            placed = self._placed(machines, ())
            assert isinstance(placed, Assignments)
            self.busiest_s = max(self.busiest_s, time.thread_time() - began)
            self.longer, found = max(self.longer, placed.step_s / found.step_s - 1), placed
        line = self.placement.arrangement(found, machines)
        return found, line.lacking(line.own)


@dataclass
class Cluster:
    """Machines whose disks keep what plans needed of them."""

    planner: Planner
    machines: dict[str, Machine] = field(default_factory=dict)

    def left(self, *lost: str) -> tuple[Machine, ...]:
        return tuple(one for name, one in self.machines.items() if name not in lost)

    def fetch(self, plan: Assignments) -> None:
        for one in plan.assignments[1:]:
            known = self.machines[one.machine]
            self.machines[one.machine] = replace(known, held=known.held.with_share(one.share))

    def held_bytes(self) -> int:
        model = self.planner.model
        total = 0
        for one in self.machines.values():
            total += one.held.attention.bit_count() * sum(model.query_unit_bytes)
            total += one.held.kv_heads(model.shape.group_size).bit_count() * sum(model.kv_unit_bytes)
            total += one.held.ffn.bit_count() * sum(model.ffn_tile_bytes)
        return model.num_layers * total

    def live(self) -> tuple[float, float, float]:
        """What is lacking after a loss without stocks, the stocks, and what is lacking after a second loss; bytes."""
        planner, names = self.planner, list(self.machines)
        first, _ = planner.plan(self.left())
        self.fetch(first)
        planner.serving = first.assignments
        serving = self.held_bytes()
        bare = sum(planner.plan(self.left(name))[1] for name in names) / len(names)
        for name in ("", *names):
            self.fetch(planner.plan(self.left(name))[0])
        for name in names:
            _, lacking = planner.plan(self.left(name))
            assert not lacking, "what was stocked for a loss is what the loss needs"
        again = []
        for one, other in zip(names, names[1:] + names[:1], strict=True):
            planner.serving = first.assignments
            planner.serving = planner.plan(self.left(one))[0].assignments
            again.append(planner.plan(self.left(one, other))[1])
        return bare, self.held_bytes() - serving, sum(again) / len(again)


def main() -> None:
    """Simulate, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, nargs="+", default=_COUNTS, help="how many, one row for each")
    arguments = parser.parse_args()
    for shape, model in _SHAPES.items():
        whole, _ = whole_bytes(model, 0)
        for workers in arguments.workers:
            rows: dict[str, list[tuple[float, float, float]]] = {places: [] for places in _PLACES}
            longer = busiest_s = 0.0
            for number in range(arguments.clusters):
                chance = random.Random(f"{arguments.seed} {workers} {number}")
                speeds = {f"w-{one}": chance.uniform(0.5e10, 2e10) for one in range(workers)}
                known: dict[frozenset[str], Assignments] = {}
                for places in _PLACES:
                    planner = Planner(model, places, known)
                    machines = {name: machine(name, speed) for name, speed in speeds.items()}
                    rows[places].append(Cluster(planner, machines).live())
                longer, busiest_s = max(longer, planner.longer), max(busiest_s, planner.busiest_s)
            means = [
                [sum(column) / arguments.clusters / whole for column in zip(*rows[places], strict=True)]
                for places in _PLACES
            ]
            words = (
                f"{what} {' -> '.join(f'{value:.1%}' for value in values)}"
                for what, values in zip(
                    ("nothing stocked", "stocks", "second loss"), zip(*means, strict=True), strict=True
                )
            )
            print(
                f"{shape}, {workers} workers: {', '.join(words)}; steps at most {longer:.1%} longer, "
                f"{1e3 * busiest_s:.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
