"""Decides in which order a node's disk jobs begin, and counts what they moved. Pure.

Time is counted in bytes of begun jobs, because the disk's rate is unknown.

Laws

1. The job with the earliest due time begins first; ties go by submission.
2. Weights are due at once, pages to bring after twice their bytes, and pages to leave after 64 times, counted from
   now or the purpose's previous due time. So weights and pages that wait get half of the disk each, and writes take
   at most a 64th from waiting reads.
3. At most one job writes at a time, so that reads find a free thread.
4. Using an idle disk changes no later order.
"""

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from operator import itemgetter
from typing import Final, Literal, TypeAlias

Purpose: TypeAlias = Literal["weights", "bring", "leave"]

#: A job is due after this many times its bytes.
_DELAYS: Final = {"weights": 0, "bring": 2, "leave": 64}


@dataclass(slots=True)
class DiskUse:
    """The use of the disk for one purpose. `nbytes` / `busy_s` is the disk's rate for it."""

    #: Bytes that were moved, and the jobs that moved some.
    nbytes: int = 0
    jobs: int = 0
    #: The time with at least one job under way.
    busy_s: float = 0.0


class DiskOrder:
    """Tickets name jobs. Times are in seconds of any clock."""

    def __init__(self) -> None:
        self._bytes_begun = 0
        self._last_due = dict.fromkeys(_DELAYS, 0)
        #: The waiting (due, ticket, purpose, bytes): reads and writes.
        self._reads: list[tuple[int, int, Purpose, int]] = []
        self._writes: list[tuple[int, int, Purpose, int]] = []
        self._ticket = 0
        self._running: dict[int, Purpose] = {}
        self._used = {purpose: DiskUse() for purpose in _DELAYS}
        self._counted_until = dict.fromkeys(_DELAYS, 0.0)  # valid while a job of the purpose runs

    def submit(self, purpose: Purpose, nbytes: int) -> int:
        """Returns the ticket of a new job that will move `nbytes`."""
        self._ticket += 1
        due = max(self._bytes_begun, self._last_due[purpose]) + _DELAYS[purpose] * nbytes
        self._last_due[purpose] = due
        waiting = self._writes if purpose == "leave" else self._reads
        heappush(waiting, (due, self._ticket, purpose, nbytes))
        return self._ticket

    def begin(self, now: float) -> int | None:
        """Returns the ticket of the job that begins now, or None if no job may begin."""
        writes = self._writes if "leave" not in self._running.values() else []
        ready = [waiting for waiting in (self._reads, writes) if waiting]
        if not ready:
            return None
        due, ticket, purpose, nbytes = heappop(min(ready, key=itemgetter(0)))
        # A job that begins before it is due, because nothing else waits, moves the time on: its purpose loses nothing.
        self._bytes_begun = max(self._bytes_begun + nbytes, due)
        self._count(purpose, now)
        self._running[ticket] = purpose
        return ticket

    def end(self, ticket: int, moved_bytes: int, now: float) -> None:
        purpose = self._running[ticket]
        self._count(purpose, now)
        del self._running[ticket]
        self._used[purpose].nbytes += moved_bytes
        self._used[purpose].jobs += moved_bytes > 0

    def used(self, purpose: Purpose) -> DiskUse:
        return replace(self._used[purpose])

    @property
    def moved_bytes(self) -> int:
        return sum(used.nbytes for used in self._used.values())

    def _count(self, purpose: Purpose, now: float) -> None:
        if purpose in self._running.values():
            self._used[purpose].busy_s += now - self._counted_until[purpose]
        self._counted_until[purpose] = now
