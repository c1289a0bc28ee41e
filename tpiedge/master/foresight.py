"""Looks ahead while an epoch serves: plans for the loss of each of its workers, and what machines stock for them.

Such a plan is at hand when it is needed, and what it lacks has come to the machines' disks before, so that those that
are left read it instead of fetching it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tpiedge.master.assignments import Assignments
from tpiedge.master.planning import PlaceNodes, plan_without_breakers
from tpiedge.master.roster import Machine
from tpiedge.pack.held import HeldUnits
from tpiedge.pack.share import NodeShare, Share
from tpiedge.wire.epochs import Stock, Stocked
from tpiedge.wire.fields import UnitRange

_Share = tuple[UnitRange, UnitRange]

#: In place of a worker's name: its node is lost, and the machine stays.
_NOBODY: Final = ""


class Foresight:
    """For the control thread; nothing blocks. `tell(message, machine)` sends without waiting."""

    def __init__(
        self, plan: PlaceNodes, tell: Callable[[Stock, str], None], pack_id: str, *, stock: bool
    ) -> None:
        """Without `stock` machines say what is on their disks, and fetch nothing."""
        self._plan = plan
        self._tell = tell
        self._pack_id = pack_id
        self._stock = stock
        #: For whom the plans are made: what plans depend on of machines, and the workers that serve.
        self._facts: object = None
        #: The losses that are still to be planned for, and by machine the shares that the plans made so far give it.
        self._due: list[str] = []
        self._needed: dict[str, dict[_Share, None]] = {}
        self._number = 0
        #: By machine, what it was told, and the nonce of the agent that it was told to.
        self._told: dict[str, tuple[int, Stock]] = {}
        self._stocked: dict[str, Stocked] = {}

    @property
    def stocked(self) -> Mapping[str, Stocked]:
        """What the machines have said, by name."""
        return self._stocked

    def heard(self, machine: str, message: Stocked) -> None:
        """Takes a machine's answer, unless it is to an earlier order."""
        _, told = self._told.get(machine, (0, None))
        if told is not None and told.number == message.number:
            self._stocked[machine] = replace(message, complete=message.complete and bool(told.shares))

    def again(self) -> None:
        """What plans depend on beside the workers has changed."""
        self._facts = None

    def look(self, machines: Sequence[Machine], serving: Sequence[str]) -> None:
        """Makes one plan more, if one is missing, and once all are made tells each machine what they need of it.

        `machines` are those that a plan would be made for now, `serving` the workers that serve.
        """
        facts = [one.planned_by for one in machines], tuple(serving)
        if facts != self._facts:
            self._facts = facts
            self._due = [_NOBODY, *serving]
            self._needed = {one.name: {} for one in machines}
        if not self._due:
            return
        lost = self._due.pop(0)
        self._foresee(tuple(one for one in machines if one.name != lost))
        if not self._due:
            self._order(machines)

    def _foresee(self, left: tuple[Machine, ...]) -> None:
        # What other plans need of a machine will be there.
        left = tuple(replace(one, held=_with_shares(one.held, self._needed[one.name])) for one in left)
        found, _ = plan_without_breakers(self._plan, left, ())
        if isinstance(found, Assignments):
            for one in found.assignments:
                if one.machine:  # the master's own has the whole pack
                    attention, ffn = one.share.attention, one.share.ffn
                    share = (attention.start, attention.stop), (ffn.start, ffn.stop)
                    self._needed[one.machine][share] = None

    def _order(self, machines: Sequence[Machine]) -> None:
        told, self._told = self._told, {}
        for machine in machines:
            shares = tuple(self._needed[machine.name]) if self._stock else ()
            nonce, before = told.get(machine.name, (0, None))
            if before is not None and (nonce, before.shares) == (machine.offer.nonce, shares):
                self._told[machine.name] = nonce, before
                continue
            self._number += 1
            stock = Stock(0, self._number, self._pack_id, shares)
            self._told[machine.name] = machine.offer.nonce, stock
            self._stocked.pop(machine.name, None)
            self._tell(stock, machine.name)
        self._stocked = {name: said for name, said in self._stocked.items() if name in self._told}


def _with_shares(held: HeldUnits, shares: Iterable[_Share]) -> HeldUnits:
    for attention, ffn in shares:
        held = held.with_share(NodeShare(Share(*attention), Share(*ffn)))
    return held
