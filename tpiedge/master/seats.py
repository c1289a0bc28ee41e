"""Whose the parts of the master's --shares are: a table of names, who takes part by it, and the file that keeps it
from one master to the next.

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

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tpiedge.errors import DiskFull, UserError
from tpiedge.host.private_file import read_private, replace_private
from tpiedge.joining.disk_thread import DiskThread

_log = logging.getLogger(__name__)

SEATS_FILE: Final = "seats.json"
_CLOSE_S: Final = 10.0


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


class SeatFile:
    """`folder`/seats.json, written by a thread of its own from the construction to `close`."""

    def __init__(self, folder: Path, count: int) -> None:
        """So many seats: more than were kept belong to nobody yet, fewer are the first ones. Raises UserError for a
        file that is damaged or cannot be read."""
        self._path = folder / SEATS_FILE
        kept = _read(self._path)[:count]
        self._latest = self._written = Seats((*kept, *[Seat()] * (count - len(kept))))
        self._disk = DiskThread("tpiedge-seats", 1)

    @property
    def seats(self) -> Seats:
        """The latest."""
        return self._latest

    def keep(self, seats: Seats) -> None:
        """Does not block."""
        self._latest = seats
        self._disk.put(self._write)  # where one waits already, that writes the latest, too

    def close(self) -> None:
        """Tries once more to write what could not be written, and waits for the disk, for a while. Idempotent."""
        self._disk.put(self._write)
        if not self._disk.close(_CLOSE_S):
            _log.error("the disk does not take what it should: %s may be old", self._path)

    def _write(self) -> None:
        latest = self._latest
        if latest == self._written:
            return
        try:
            replace_private(self._path, {"seats": [[one.owner, one.stand_in] for one in latest.seats]})
        except (UserError, DiskFull) as error:
            _log.error("after a restart workers may have other parts of --shares than now: %s", error)
        else:
            self._written = latest


def _read(path: Path) -> tuple[Seat, ...]:
    seats = (read_private(path) or {"seats": []}).get("seats")
    if not isinstance(seats, list):
        raise _damaged(path)
    found = tuple(_seat(one, path) for one in seats)
    names = Seats(found).names
    if len(set(names)) < len(names):
        raise _damaged(path)
    return found


def _seat(values: object, path: Path) -> Seat:
    match values:
        case [str(owner), str(stand_in)]:
            return Seat(owner, stand_in)
    raise _damaged(path)


def _damaged(path: Path) -> UserError:
    return UserError(
        f"{path} is damaged: restore it from a backup; or delete it, and workers get the parts of --shares in the "
        "order in which they joined"
    )
