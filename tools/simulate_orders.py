"""How many bytes disks lack when machines come, leave or change their speed, by the order of ranks.

    .venv/bin/python tools/simulate_orders.py [--clusters 12] [--events 12] [--seed 1] [--workers 2 3 4 7 15]

Random clusters of a 70B shape in q4 live through joins, losses, returns and changes of speed, twice: with the planner's
own order of ranks, and with the one in which disks lack the fewest bytes. Disks keep what was fetched: for the plans
that served, or ("spare") for the loss of each worker as well.

Printed for each number of workers, per event and as parts of all layers: what is lacking on the disks of all machines
but a newcomer ("others"), of all ("all"), and for losses, beforehand ("losses"); each with the own order, with the
other, and their ratio. Then by how much a step was longer at most.
"""

import argparse
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tpiedge.master.arranging import Arranger
from tpiedge.master.assignments import Assignment, Assignments, NoPlan
from tpiedge.master.foresight import PlaceNodes
from tpiedge.master.placement import OWN_NAME, NodePlacement
from tpiedge.master.roster import Machine
from tpiedge.planner.fractions import whole_bytes
from tpiedge.planner.needs import ModelFacts
from tpiedge.planner.partition import LayerShape
from tpiedge.planner.prediction import Demand, MachineFacts
from tpiedge.units import GIB
from tpiedge.wire.epochs import Capacity, Offer
from tpiedge.wire.weights import Keeping

_UNIT = 128 * 8192 * 9 // 16  # q4: a byte of scale for eight of weights
_COUNTS = (2, 3, 4, 7, 15)
MODEL = ModelFacts(
    LayerShape(64, 8, 224), 80, (_UNIT,) * 2, (_UNIT,) * 2, (_UNIT,) * 3, (_UNIT,) * 3, 0, GIB, 1 << 16, 64
)


class _Planner:
    """The planner's plans; both worlds ask for the same ones."""

    def __init__(self) -> None:
        own = MachineFacts(OWN_NAME, 1e10, 256 * GIB)
        self.placement = NodePlacement(Demand(MODEL, 4096), own, 4)
        self._known: dict[object, Assignments | NoPlan] = {}

    def __call__(self, machines: tuple[Machine, ...], serving: tuple[str, ...]) -> Assignments | NoPlan:
        question = tuple(one.planned_by for one in machines)
        if question not in self._known:
            self._known[question] = self.placement(machines, serving)
        return self._known[question]


class World:
    """Machines whose disks keep what plans needed of them. `spare`: those for the loss of each worker, too."""

    def __init__(self, planner: _Planner, *, own_order: bool, spare: bool) -> None:
        self._placement = planner.placement
        self._serving: tuple[Assignment, ...] = ()
        arranger = Arranger(self._placement, lambda: [self._serving])
        self._plan: PlaceNodes = planner if own_order else arranger.over(planner)
        self._machines: dict[str, Machine] = {}
        self._spare = spare
        self.lacking: Counter[str] = Counter()

    def live(self, present: dict[str, float], newcomer: str) -> float:
        """Everybody fetches for the plan of these speeds, and what losses need. Returns the seconds of its step."""
        known = self._machines
        for name, speed in present.items():
            found = machine(name, speed)
            known[name] = replace(found, held=known[name].held) if name in known else found
        step_s = self._fetch(list(present), newcomer)
        for lost in present if self._spare else ():
            self._fetch([name for name in present if name != lost], "", "losses")
        return step_s

    def _fetch(self, names: list[str], newcomer: str, why: str = "all") -> float:
        machines = tuple(self._machines[name] for name in names)
        found = self._plan(machines, ())
        if not isinstance(found, Assignments):
            raise SystemExit(f"no plan for {names}: {found.reason}")
        line = self._placement.arrangement(found, machines)
        for one, lacks in zip(found.assignments, line.lacks(line.own), strict=True):
            self.lacking[why] += lacks
            if why == "all" and one.machine != newcomer:
                self.lacking["others"] += lacks
            if one.machine:
                known = self._machines[one.machine]
                self._machines[one.machine] = replace(known, held=known.held.with_share(one.share))
        if why == "all":
            self._serving = found.assignments
        return found.step_s


def machine(name: str, speed: float) -> Machine:
    capacity = Capacity(4, speed, speed)
    offer = Offer(0, name, name, "", 0, 1, "", "", 4, 256 * GIB, 1 << 50, capacity, 0.0, Keeping())
    return Machine(name, offer, 0.0, 0.0)


def _life(workers: int, events: int, chance: random.Random) -> Iterator[tuple[dict[str, float], str]]:
    """(speeds of those who are present, the newcomer or "") after each event: about so many workers. The first
    event has one come, or slow down."""
    speeds = {f"w-{number}": chance.uniform(0.5e10, 2e10) for number in range(workers - 1)}
    present = dict(speeds)
    yield dict(present), ""
    for number in range(events):
        newcomer = ""
        away = [name for name in speeds if name not in present]
        event = chance.choice(("come", "slow") if len(present) < workers else ("leave", "slow", "leave"))
        if event == "come" and away and chance.random() < 0.5:
            back = chance.choice(away)
            present[back] = speeds[back]
        elif event == "come":
            newcomer = f"n-{number}"
            present[newcomer] = speeds[newcomer] = chance.uniform(0.5e10, 2e10)
        elif event == "leave":
            del present[chance.choice(list(present))]
        else:
            present[chance.choice(list(present))] *= chance.choice((0.5, 0.7, 1.4))
        yield {name: present[name] for name in speeds if name in present}, newcomer


def main() -> None:
    """Simulate, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, default=12)
    parser.add_argument("--events", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, nargs="+", default=_COUNTS, help="how many, one row for each")
    arguments = parser.parse_args()
    whole, _ = whole_bytes(MODEL, 0)
    for spare in (False, True):
        for workers in arguments.workers:
            lacking: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
            longer = 0.0
            for cluster in range(arguments.clusters):
                planner = _Planner()
                worlds = {own: World(planner, own_order=own, spare=spare) for own in (True, False)}
                chance = random.Random(f"{arguments.seed} {workers} {cluster}")
                for number, (present, newcomer) in enumerate(_life(workers, arguments.events, chance)):
                    if number == 1:
                        for world in worlds.values():
                            world.lacking.clear()
                    own_s, other_s = (worlds[own].live(present, newcomer) for own in (True, False))
                    longer = max(longer, other_s / own_s - 1)
                for own, world in worlds.items():
                    lacking[own] += world.lacking
            events = arguments.clusters * arguments.events * whole
            row = [
                f"{why} {lacking[True][why] / events:.3f} {lacking[False][why] / events:.3f}"
                f" ({lacking[False][why] / max(1, lacking[True][why]):.2f})"
                for why in ("others", "all", *(["losses"] if spare else []))
            ]
            print(
                f"{workers} workers{', spare' if spare else ''}: {', '.join(row)}; steps at most {longer:.1%} longer"
            )


if __name__ == "__main__":
    main()
