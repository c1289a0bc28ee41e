"""What nodes say of themselves: what each one counts, what all did in one step, which machines these counters show to
be slower or faster than they measured, and whether requests get on. Without clock, sockets or threads.

Rates are those between two arrivals, whenever somebody looks at them: a node's word may be old when it is read.

Progress is a token, scores or the end of a running request, a node that is further in its step, blocks or weights than
it ever said, and a change in rank 0's counters: a chunk of a long prompt changes nothing else. Rank 0 is stuck once
none of the running requests made progress for a while. Counters of memory and of received messages do not count:
anyone who reaches rank 0's port could change them, and so keep a stuck request alive for ever.
"""

import logging
import statistics
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from tpiedge.master.epoch import Member
from tpiedge.master.roster import Machine, Roster
from tpiedge.wire.control import Stats, StepSpans

_log = logging.getLogger(__name__)

_NO_PROGRESS: Final = dict.fromkeys(
    ("peak_rss_bytes", "kv_bytes", "kv_pages", "kv_pages_used", "bytes_received", "dropped", "refused"), 0
)
#: A worker is off its pace once AGREEING windows of WINDOW_S with STEPS steps say so in a row, by the factor OFF.
WINDOW_S: Final = 8.0
STEPS: Final = 16
AGREEING: Final = 3
OFF: Final = 2.0


@dataclass(frozen=True, slots=True)
class Counted:
    """The `latest` counters of a node, which came `spent_s` after the `first` ones of the last seconds; 0, and the
    same ones, where there are no others."""

    latest: Stats
    first: Stats
    spent_s: float


class CounterLog:
    """The counters of one node in one epoch; rates are of 6 seconds at most."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, Stats]] = deque()

    def take(self, stats: Stats, now: float) -> None:
        self._heard.append((now, stats))
        while now - self._heard[0][0] > 6.0:
            self._heard.popleft()

    def counted(self, now: float) -> Counted | None:
        """None before the first ones. Those that came long before `now` say nothing of how fast things go."""
        if not self._heard:
            return None
        (begun, first), (ended, latest) = self._heard[0], self._heard[-1]
        if now - ended > 6.0:
            return Counted(latest, latest, 0.0)
        return Counted(latest, first, ended - begun)


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """One step that all nodes recorded, of an epoch. `at`: when the last of them said so, in seconds since 1970;
    `spans` in the order of ranks."""

    epoch: int
    at: float
    spans: tuple[StepSpans, ...]


class Pace:
    """Which nodes of a session compute slower or faster than the plan expects. All nodes take the same steps, and the
    FFN of a step of answers costs each of them its part of the weights. So the time of a node's FFN, divided by what
    the plan expects of it, is the same on all; where it is not, the machine is not as fast as when it measured itself:
    it got hot, or its owner needs it. All are compared with rank 0, the machine that cannot be replaced; where that has
    no FFN, nothing is found."""

    def __init__(self, expected: Sequence[float]) -> None:
        """`expected`: by rank, the seconds of a step's FFN, or anything proportional to them; 0: not known."""
        self._expected = expected
        self._began: tuple[float, Mapping[int, Stats]] | None = None
        self._off: dict[int, list[float]] = {}

    def off(
        self, counters: Mapping[int, Stats], believed: Mapping[int, float], now: float
    ) -> Mapping[int, float]:
        """How many times slower than expected the ranks are of whom another thing is `believed`, once that is certain.
        `counters`: the latest of each rank. They may be of slightly different instants."""
        if 0 not in counters:
            return {}
        began, first = self._began or (-WINDOW_S, counters)
        steps = counters[0].steps - first[0].steps
        if self._began is not None and (now - began < WINDOW_S or steps < STEPS):
            return {}
        self._began = now, dict(counters)
        # More than four tokens in a step are a prompt's, with whose many rows machines differ in other ways, or those
        # of so many answers that arithmetic counts, not reading weights.
        if not steps or counters[0].tokens - first[0].tokens > 4 * steps:
            return {}
        paces = {
            rank: (counters[rank].ffn_s - first[rank].ffn_s) / steps / expected
            for rank, expected in enumerate(self._expected)
            if expected > 0 and rank in first and rank in counters
        }
        found = {}
        for rank, pace in paces.items() if paces.get(0, 0.0) > 0 else ():
            if rank == 0 or pace <= 0:
                continue
            off = self._off.setdefault(rank, [])
            off.append(pace / paces[0])
            del off[:-AGREEING]
            most, least = OFF * believed.get(rank, 1.0), believed.get(rank, 1.0) / OFF
            if len(off) == AGREEING and (min(off) >= most or max(off) <= least):
                found[rank] = statistics.median(off)
                off.clear()
        return found


def note_speeds(
    roster: Roster,
    machines: Collection[str],
    slowdowns: Callable[[Mapping[str, float]], Mapping[str, float]],
    now: float,
) -> None:
    """Has the roster know what the nodes of a session show, which has a part for these `machines`. Others show nothing:
    they are tried again after ten minutes."""
    for machine in roster.present:
        if machine.slowdown != 1 and machine.name not in machines and _settled(machine, now, 600.0):
            roster.slowed(machine.name, 1.0, now)
    present = {machine.name: machine for machine in roster.present}
    found = slowdowns({name: machine.slowdown for name, machine in present.items()})
    for name, slowdown in found.items():
        if _settled(present[name], now, 30.0):
            _log.info("%s takes %.1f times as long as it measured", present[name].offer.host, slowdown)
            roster.slowed(name, slowdown, now)


def _settled(machine: Machine, now: float, least_s: float) -> bool:
    """Whether the machine's speed may change again: a machine that its owner uses now and then would otherwise have
    everybody pause again and again. The first change may come at any time, each later one after twice the time."""
    if not machine.changes:
        return True
    return now - machine.slowed >= least_s * min(16, 1 << (machine.changes - 1))


class RequestWatch:
    """Watches all running requests together. Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self._progress_at = 0.0  # while a request runs
        self._furthest: dict[int, tuple[tuple[int, int], int]] = {}
        self._measured: Stats | None = None  # since the last progress of another kind

    def begin(self, request: str, now: float) -> None:
        """Rank 0 gets the request: no progress where others run, for rank 0 has only been sent it."""
        if not self.running:
            self.advance(now)
        self.running.add(request)

    def advance(self, now: float) -> None:
        """A running request made progress, for example by a token."""
        self._progress_at, self._measured = now, None

    def end(self, request: str, now: float) -> None:
        self.running.remove(request)
        self.advance(now)

    def look(self, members: Sequence[Member], now: float) -> None:
        for member in members:
            at, read = self._furthest.get(member.rank, ((-1, -1), -1))
            reached = (max(at, (member.step, member.block)), max(read, member.bytes_read))
            if reached != (at, read):
                self._furthest[member.rank] = reached
                self.advance(now)

    def measured(self, stats: Stats, now: float) -> None:
        found = structs.replace(stats, **_NO_PROGRESS)
        if self._measured not in (None, found):
            self.advance(now)
        self._measured = found

    def quiet_s(self, now: float) -> float:
        """For how long there has been no progress; 0 where nothing runs."""
        return now - self._progress_at if self.running else 0.0
