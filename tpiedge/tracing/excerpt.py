"""Which part of a trace is looked at: given steps, given times, or the typical steps. Pure functions.

A decode step computes the token that the head of the step before has drawn; the others compute the prompt. The prompt
of a later request follows such a step as well and counts as a decode step: only its time tells it from one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tpiedge.tracing.chrome import Trace
from tpiedge.tracing.intervals import Interval

_TYPICAL = 3
_RANGE = re.compile(r"(?P<only>\d{1,9})|(?P<first>\d{1,9})?:(?P<last>\d{1,9})?", re.ASCII)


@dataclass(frozen=True)
class StepRange:
    """The steps from `first` to `last`, both included. None is the first or the last step of the trace."""

    first: int | None
    last: int | None

    def __str__(self) -> str:
        if self.first == self.last and self.first is not None:
            return str(self.first)
        return ":".join("" if end is None else str(end) for end in (self.first, self.last))

    def of(self, known: Sequence[int]) -> tuple[int, ...]:
        """Returns those of the steps, which are in order, that are in the range; none if an end is not among them."""
        if not known or any(end not in (None, *known) for end in (self.first, self.last)):
            return ()
        first = known[0] if self.first is None else self.first
        last = known[-1] if self.last is None else self.last
        return tuple(step for step in known if first <= step <= last)


@dataclass(frozen=True)
class Excerpt:
    """What goes on from `start_s` to `end_s`; `steps` are those that it is about, in order."""

    start_s: float
    end_s: float
    steps: tuple[int, ...]

    @property
    def window(self) -> Interval:
        """From when to when."""
        return self.start_s, self.end_s


def parse_steps(text: str) -> StepRange:
    """Reads "40", "40:44", "40:", ":44" or ":". Raises ValueError for anything else, and for a range that ends before
    it begins."""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is neither a step nor a range of steps: write 40, 40:44, 40: or :44")
    first, last = (found["only"] or found[end] for end in ("first", "last"))
    asked = StepRange(int(first) if first else None, int(last) if last else None)
    if asked.first is not None and asked.last is not None and asked.last < asked.first:
        raise ValueError(f"{text!r} ends before it begins: write {asked.last}:{asked.first}")
    return asked


def excerpt_of_times(trace: Trace, start_s: float, end_s: float) -> Excerpt:
    """Returns what is between two times, and every step of which a part is in it."""
    inside = (step for step, (start, end) in trace.steps.items() if start < end_s and end > start_s)
    return Excerpt(start_s, end_s, tuple(sorted(inside)))


def excerpt_of_steps(trace: Trace, steps: Sequence[int]) -> Excerpt:
    """Returns the time of some steps of the trace, one at least."""
    spans = [trace.steps[step] for step in steps]
    return Excerpt(min(start for start, _ in spans), max(end for _, end in spans), tuple(steps))


def typical_excerpt(trace: Trace) -> Excerpt:
    """Returns the typical steps of a trace, or all of it if it has no steps."""
    if not trace.steps:
        return excerpt_of_times(trace, 0.0, trace.end_s)
    if len(trace.steps) <= _TYPICAL:
        return excerpt_of_steps(trace, sorted(trace.steps))
    spent_s = {step: end - start for step, (start, end) in trace.steps.items()}
    return excerpt_of_steps(trace, typical_steps({step: spent_s[step] for step in decode_steps(trace)}))


def decode_steps(trace: Trace) -> list[int]:
    """Returns the steps without those of the prompt; all steps if there are no others."""
    headed = {event.step for events in trace.nodes.values() for event in events if event.name == "head"}
    known = sorted(trace.steps)
    return [step for step in known if step - 1 in headed] or known


def typical_steps(spent_s: Mapping[int, float]) -> Sequence[int]:
    """Returns three steps in a row whose times are nearest to the median of all, and the first such three; fewer where
    no three are in a row. `spent_s` has at least one step."""
    usual_s = median(spent_s.values())

    def farthest(steps: Sequence[int]) -> float:
        return max(abs(spent_s[step] - usual_s) for step in steps)

    known = sorted(spent_s)
    for count in range(_TYPICAL, 1, -1):
        windows = [known[place : place + count] for place in range(len(known) - count + 1)]
        rows = [steps for steps in windows if steps[-1] - steps[0] == count - 1]
        if rows:
            return min(rows, key=farthest)
    return [min(known, key=lambda step: farthest([step]))]
