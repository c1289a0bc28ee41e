"""Whose the parts of the master's --shares are: a table of names, and who takes part by it. Pure.

A seat is one of the parts that --shares gives to workers. Laws:
1. A seat belongs to a worker by name, here or away, until that is revoked. A worker that is let in gets the first seat
   that belongs to nobody, unless it stands in for another. A seat whose owner was revoked is the one's that stands in
   for it, or else the next one's that has it in a plan.
2. Who is here has its own seat. A worker that offers too little for a seat counts as away from it.
3. The seat of one that is away is the one's that stood in for it last, if that is here, or else the first other one's
   that is here and has none. It ends when the owner is back, and no sooner.
4. So nobody who is here and needed gets another seat, whoever else leaves, returns or is drained, and in whatever order
   they come back after a restart of the master. Workers change seats only where a seat would stay empty otherwise.
5. No name is in the table twice: the owner of a seat that stands in for another one is not noted there.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, order=True)
class Claim:
    """A worker is the owner of the seat of that number, or else stood in for its owner last."""

    stands_in: bool
    seat: int


@dataclass(frozen=True)
class Seat:
    """Peer names; "" for nobody."""

    owner: str = ""
    stand_in: str = ""


@dataclass(frozen=True)
class Seats:
    """`seats` are in the order of --shares; none of them is the master's own. Every method that changes something gives
    a new table."""

    seats: tuple[Seat, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for seat in self.seats for name in (seat.owner, seat.stand_in) if name)

    def claim(self, name: str) -> Claim | None:
        """None where it has none."""
        for number, seat in enumerate(self.seats):
            if name in (seat.owner, seat.stand_in):
                return Claim(name == seat.stand_in, number)
        return None

    def joined(self, name: str) -> "Seats":
        """The worker belongs to the cluster."""
        free = next((number for number, seat in enumerate(self.seats) if not seat.owner), None)
        if free is None or name in self.names:
            return self
        return Seats((*self.seats[:free], Seat(name), *self.seats[free + 1 :]))

    def taken(self, names: Sequence[str]) -> "Seats":
        """A plan was made in which `names[number]` has that seat."""
        owners = {seat.owner for seat in self.seats}
        return Seats(
            tuple(_taken(seat, name, names, owners) for seat, name in zip(self.seats, names, strict=True))
        )

    def without(self, name: str) -> "Seats":
        """The worker was revoked."""
        return Seats(tuple(_without(seat, name) for seat in self.seats))


class SeatKeeper(Protocol):
    """Keeps the table from one master to the next."""

    @property
    def seats(self) -> Seats:
        """The table of the master before."""
        ...

    def keep(self, seats: Seats) -> None:
        """For the control thread: does not block."""
        ...


def seated(
    count: int,
    claims: Mapping[str, Claim | None],
    fits: Callable[[str, int], bool] = lambda _name, _seat: True,
) -> tuple[str, ...]:
    """Who has each of `count` seats while the workers of `claims` are here, "" for nobody. `claims` are in the order in
    which workers are to be asked to stand in; `fits(name, seat)` says whether a worker offers enough for a seat."""
    claimed = sorted((claim, name) for name, claim in claims.items() if claim is not None)
    found: dict[int, str] = {}
    for claim, name in claimed:
        if claim.seat < count and claim.seat not in found and fits(name, claim.seat):
            found[claim.seat] = name
    owners = [name for claim, name in claimed if not claim.stands_in]
    owned = {seat for seat, name in found.items() if name in owners}
    # The table notes for whom the others stand in: the next plan asks in the same order.
    asked = [*(name for name in claims if name not in owners), *owners]
    for fixed in (owned, set[int]()):  # who is here and owns a seat changes it last
        for seat in range(count):
            if seat not in found:
                _fill(seat, found, asked, fits, {seat, *fixed})
    return tuple(found.get(seat, "") for seat in range(count))


def _fill(
    seat: int, found: dict[int, str], names: Sequence[str], fits: Callable[[str, int], bool], tried: set[int]
) -> bool:
    """Finds somebody for the seat, if need be by giving another seat, none of `tried`, to somebody else: an augmenting
    path of a bipartite matching."""
    able = [name for name in names if fits(name, seat)]
    having = {name: other for other, name in found.items()}
    free = next((name for name in able if name not in having), None)
    if free is not None:
        found[seat] = free
        return True
    for name in able:
        other = having[name]
        if other not in tried:
            tried.add(other)
            if _fill(other, found, names, fits, tried):
                found[seat] = name
                return True
    return False


def _taken(seat: Seat, name: str, names: Sequence[str], owners: Set[str]) -> Seat:
    if seat.owner and name not in owners:
        return Seat(seat.owner, name)
    owner = seat.owner if name in owners else name
    return Seat(owner, "" if seat.stand_in in names else seat.stand_in)


def _without(seat: Seat, name: str) -> Seat:
    if name == seat.owner:
        return Seat(seat.stand_in)
    return replace(seat, stand_in="") if name == seat.stand_in else seat
