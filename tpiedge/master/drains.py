"""Users' orders that take a worker out of plans, on their way from any thread to the control thread.

Laws:
1. An order is carried out only where the others can serve without the worker. Otherwise it fails with what is missing,
   and nothing changes.
2. An order that nobody waits for any more is not carried out.
3. Who gave an order hears of it once the status shows what it did.
4. Orders are settled one by one, in their order: two workers that could only go one at a time do not both go.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from tpiedge.errors import TpiedgeError
from tpiedge.master.assignments import Assignments, NoPlan
from tpiedge.master.roster import Machine, Roster


class CannotDrain(TpiedgeError):
    """The worker is away, or the others cannot serve without it. Nothing was changed."""


@dataclass(frozen=True)
class _DrainOrder:
    name: str
    drained: bool
    done: Future[str] = field(default_factory=Future)


class Drains:
    """`order` and `undo` are for any thread, the rest for the roster's."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._orders: deque[_DrainOrder] = deque()
        self._settled: list[tuple[_DrainOrder, CannotDrain | None]] = []

    def order(self, name: str) -> Future[str]:
        """Has the worker taken out of plans: the result is its name, or CannotDrain. Cancelled, the order is void."""
        order = _DrainOrder(name, drained=True)
        self._orders.append(order)
        return order.done

    def undo(self, name: str) -> None:
        """Lets plans have the worker again, if they may not."""
        self._orders.append(_DrainOrder(name, drained=False))

    def settle(self, find: Callable[[str], Assignments | NoPlan]) -> None:
        """Carries out what was ordered. `find` gives the plan without a worker."""
        while self._orders:
            order = self._orders.popleft()
            error = self._obstacle(order, find)
            if not order.done.set_running_or_notify_cancel():
                continue
            if error is None:
                self._roster.drain(order.name, order.drained)
            self._settled.append((order, error))

    def tell(self) -> None:
        """Answers what was settled; for after the new status is there."""
        for order, error in self._settled:
            if error is None:
                order.done.set_result(order.name)
            else:
                order.done.set_exception(error)
        self._settled.clear()

    def _obstacle(
        self, order: _DrainOrder, find: Callable[[str], Assignments | NoPlan]
    ) -> CannotDrain | None:
        machine = self._roster.get(order.name)
        if not order.drained:
            return None
        if machine is None or not machine.present:
            return CannotDrain(
                f"{_called(order.name, machine)} is away: it has no part that could be taken from it"
            )
        if machine.drained or order.done.cancelled():
            return None
        found = find(order.name)
        if isinstance(found, NoPlan):
            return CannotDrain(
                f"without {_called(order.name, machine)} the others cannot serve, so it keeps its part: {found.reason}"
            )
        return None


def _called(name: str, machine: Machine | None) -> str:
    """As users know it."""
    return name if machine is None or not machine.offer.host else machine.offer.host
