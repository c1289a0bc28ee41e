"""Snapshots of a terminal and their times, made fit for watching, without knowledge of terminals."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby


@dataclass(frozen=True)
class Span:
    """Text of one look within a line; wide characters make it take more cells than it has characters.

    `colour`: a name of the terminal's, `default` among them, or six hexadecimal digits.
    """

    column: int
    text: str
    cells: int
    colour: str = "default"
    bold: bool = False


Line = tuple[Span, ...]
"""From left to right, without the blanks at its ends; an empty line has no span."""


@dataclass(frozen=True)
class Snapshot:
    """The screen from `at_s` on, top line first. `cursor`: (row, column), or None where it is hidden."""

    at_s: float
    lines: tuple[Line, ...]
    cursor: tuple[int, int] | None


def thin(snapshots: Sequence[Snapshot], per_second: int) -> list[Snapshot]:
    """Keeps `per_second` snapshots at most: the last of each equal slot of time, at the slot's start."""
    slots = groupby(snapshots, key=lambda one: int(one.at_s * per_second))
    return [replace(list(several)[-1], at_s=slot / per_second) for slot, several in slots]


def shorten_pauses(snapshots: Sequence[Snapshot], longest_s: float) -> list[Snapshot]:
    """The same from 0 s on, with no more than `longest_s` between two."""
    at_s = 0.0
    moved: list[Snapshot] = []
    for place, one in enumerate(snapshots):
        if place:
            at_s += min(longest_s, one.at_s - snapshots[place - 1].at_s)
        moved.append(replace(one, at_s=at_s))
    return moved
