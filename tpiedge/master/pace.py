"""Which workers compute slower or faster than they measured, and for how long the roster believes it: without clock,
sockets or threads.

All nodes take the same steps, and the FFN of a step of answers costs each of them its part of the weights. So the time
of a node's FFN, divided by what the plan expects of it, is the same on all, whatever the steps were; where it is not,
the machine is not as fast as when it measured itself: it got hot, or its owner needs it.

Laws:
1. Windows of WINDOW_S with STEPS steps count, in which mostly answers were computed: with a prompt's many rows machines
   differ in other ways than with the one row that they measured. Steps and rows are those of rank 0's word.
2. A worker is off its pace once AGREEING windows in a row say that it is so by the factor OFF at least, either way,
   compared with rank 0's pace (the machine that cannot be replaced) and with what is believed of it. Where rank 0 has
   no FFN, in place of its pace is that of the worker in the middle, as far as it is believed: machines get slower
   rather than faster, so the faster one of the two in the middle is.
3. What one worker says of itself counts for itself alone; no time is no pace. So in place of rank 0's pace is none
   where fewer than MIDDLE workers have one: of two, either could make the other one look slow.
"""

import logging
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

from tpiedge.master.roster import Machine, Roster
from tpiedge.wire.control import Stats

_log = logging.getLogger(__name__)

WINDOW_S: Final = 8.0
STEPS: Final = 16
AGREEING: Final = 3
OFF: Final = 2.0
MIDDLE: Final = 3
#: More tokens in a step are a prompt's, or those of so many answers that arithmetic counts, not reading weights.
_MOST_TOKENS: Final = 4.0


#: So long a machine without a part counts as slow as it was when it had one, and another's speed as what it was found
#: to be; twice as long after each change, up to _LONGEST times: a machine that its owner uses now and then would
#: otherwise have everybody pause again and again.
_TRIED_S: Final = 600.0
_KEPT_S: Final = 30.0
_LONGEST: Final = 16


Slowdowns: TypeAlias = Callable[[Mapping[str, float]], Mapping[str, float]]
"""What is believed of machines -> how many times slower than they measured they turn out to be, where that differs."""


class Pace:
    """Of the nodes of one session. Times are seconds on the caller's clock."""

    def __init__(self, expected: Sequence[float]) -> None:
        """`expected`: by rank, the seconds of a step's FFN, or anything proportional to them; 0: not known."""
        self._expected = expected
        self._began: tuple[float, Mapping[int, Stats]] | None = None
        self._off: dict[int, list[float]] = {}

    def off(
        self, counters: Mapping[int, Stats], believed: Mapping[int, float], now: float
    ) -> Mapping[int, float]:
        """How many times slower than expected the ranks are of whom another thing is `believed`, once that is certain.

        `counters`: the latest of each rank. They may be of slightly different instants.
        """
        if 0 not in counters:
            return {}
        if self._began is None:
            self._began = now, dict(counters)
            return {}
        began, first = self._began
        if now - began < WINDOW_S:
            return {}
        paces = self._paces(first, counters)
        if paces is None:
            return {}
        self._began = now, dict(counters)
        return self._verdict(paces, believed)

    def _paces(self, first: Mapping[int, Stats], last: Mapping[int, Stats]) -> Mapping[int, float] | None:
        """Seconds of the FFN per step and expected second, by rank; none where prompts were computed. None while
        there were too few steps."""
        steps = last[0].steps - first[0].steps
        if steps < STEPS:
            return None
        if last[0].tokens - first[0].tokens > _MOST_TOKENS * steps:
            return {}
        return {
            rank: (last[rank].ffn_s - first[rank].ffn_s) / steps / expected
            for rank, expected in enumerate(self._expected)
            if expected > 0 and rank in first and rank in last
        }

    def _verdict(self, paces: Mapping[int, float], believed: Mapping[int, float]) -> Mapping[int, float]:
        reference, found = self._reference(paces, believed), {}
        if reference <= 0:
            return {}
        for rank, pace in paces.items():
            if pace <= 0:
                continue
            off = self._off.setdefault(rank, [])
            off.append(pace / reference)
            del off[:-AGREEING]
            most, least = OFF * believed.get(rank, 1.0), believed.get(rank, 1.0) / OFF
            if len(off) == AGREEING and (min(off) >= most or max(off) <= least):
                found[rank] = statistics.median(off)
                off.clear()
        return found

    def _reference(self, paces: Mapping[int, float], believed: Mapping[int, float]) -> float:
        """The pace of a machine that is as fast as it measured; 0 where none is known."""
        if self._expected[0] > 0:
            return paces.get(0, 0.0)
        known = [pace / believed.get(rank, 1.0) for rank, pace in paces.items() if pace > 0]
        return statistics.median_low(known) if len(known) >= MIDDLE else 0.0


def note_speeds(
    roster: Roster,
    machines: Collection[str],
    slowdowns: Callable[[Mapping[str, float]], Mapping[str, float]],
    now: float,
) -> None:
    """Has the roster know what the nodes of a session show, which has a part for these `machines`. Others show nothing:
    they are tried again after a while."""
    for machine in roster.present:
        if machine.slowdown != 1 and machine.name not in machines and _settled(machine, now, _TRIED_S):
            roster.slowed(machine.name, 1.0, now)
    present = {machine.name: machine for machine in roster.present}
    found = slowdowns({name: machine.slowdown for name, machine in present.items()})
    for name, slowdown in found.items():
        if _settled(present[name], now, _KEPT_S):
            _log.info("%s takes %.1f times as long as it measured", present[name].offer.host, slowdown)
            roster.slowed(name, slowdown, now)


def _settled(machine: Machine, now: float, least_s: float) -> bool:
    """Whether the machine's speed may change again. The first change may come at any time."""
    if not machine.changes:
        return True
    return now - machine.slowed >= least_s * min(_LONGEST, 1 << (machine.changes - 1))
