"""The table of seats on the master's disk, so that each worker has the same part of --shares after a restart."""

import logging
from pathlib import Path
from typing import Final

from tpiedge.errors import DiskFull, UserError
from tpiedge.host.private_file import read_private, replace_private
from tpiedge.joining.disk_thread import DiskThread
from tpiedge.master.seats import Seat, Seats

_log = logging.getLogger(__name__)

SEATS_FILE: Final = "seats.json"
_CLOSE_S = 10.0


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
