"""A real bash on a pseudo terminal, typed into at the speed of a human, and what its screen showed when."""

import time
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

import pexpect
import pyte

from tpiedge.errors import UserError

from .script import PROMPT, Step
from .snapshots import Line, Snapshot, Span

_LIMIT_S = 120.0  # for one step
_TICK_S = 1 / 24
_ENTER_S = 0.4
_FASTEST_S, _SLOWEST_S = 0.03, 0.09
_NEW_WORD_S = 0.05

_Cell = tuple[int, str, str, bool]
"""Column, what is in it (empty: the right half of a wide character), colour, bold."""


class Shell:
    """Owns the process and its terminal; both end with the context."""

    def __init__(self, environment: Mapping[str, str], folder: Path, columns: int, lines: int) -> None:
        self.snapshots: list[Snapshot] = []
        self._child = pexpect.spawn(
            "bash",
            ["--norc", "--noprofile"],
            env=dict(environment),
            cwd=str(folder),
            dimensions=(lines, columns),
        )
        self._child.delaybeforesend = None  # the rhythm of typing is ours
        self._screen = _Screen(columns, lines, self._child)
        self._stream = pyte.ByteStream(self._screen)
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.close(force=True)

    def begin(self) -> None:
        """Waits for the first prompt, with which the recording begins. Raises UserError."""
        self._wait_for(PROMPT)
        del self.snapshots[:-1]
        self._watch(1.0)

    def play(self, step: Step) -> None:
        """Types the step's line and waits for its end. Raises UserError."""
        for key, pause_s in zip(step.text, rhythm(step.text), strict=True):
            self._child.send(key)
            self._watch(pause_s)
        self._watch(_ENTER_S)
        self._child.send("\r")
        self._wait_for(step.expect)
        self._watch(step.pause_s)

    def _wait_for(self, expected: str) -> None:
        """Waits until the cursor's line reads `expected` up to the cursor."""
        deadline_s = time.monotonic() + _LIMIT_S
        while self._screen.before_cursor() != expected:
            if time.monotonic() > deadline_s:
                shown = "\n".join(self._screen.display).rstrip()
                raise UserError(f"no {expected!r} before the cursor within {_LIMIT_S:.0f} s:\n{shown}")
            self._watch(_TICK_S)

    def _watch(self, seconds: float) -> None:
        """Shows what the terminal says for so long, with a snapshot of every change."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                self._stream.feed(self._child.read_nonblocking(65536, timeout=left_s))
            except pexpect.TIMEOUT:
                return
            except pexpect.EOF:
                raise UserError("the shell ended before the script did") from None
            self._look()

    def _look(self) -> None:
        seen = self._screen.snapshot(time.monotonic() - self._began_s)
        last = self.snapshots[-1] if self.snapshots else None
        if last is None or (seen.lines, seen.cursor) != (last.lines, last.cursor):
            self.snapshots.append(seen)


class _Screen(pyte.Screen):
    """Answers programs that ask where the cursor is, and tells what is shown."""

    def __init__(self, columns: int, lines: int, child: "pexpect.spawn[bytes]") -> None:
        super().__init__(columns, lines)
        self._child = child

    def write_process_input(self, data: str) -> None:
        self._child.send(data)

    def before_cursor(self) -> str:
        """Returns the text left of the cursor in its line."""
        row = self.buffer[self.cursor.y]
        return "".join(row[column].data for column in range(self.cursor.x))

    def snapshot(self, at_s: float) -> Snapshot:
        lines = tuple(self._line(row) for row in range(self.lines))
        cursor = (self.cursor.y, min(self.cursor.x, self.columns - 1))
        return Snapshot(at_s, lines, None if self.cursor.hidden else cursor)

    def _line(self, row: int) -> Line:
        """Joins cells of equal colour and weight into spans."""
        cells = ((column, self.buffer[row][column]) for column in range(self.columns))
        looks = [(column, cell.data, cell.fg, cell.bold) for column, cell in cells]
        spans = (_span(list(several)) for _, several in groupby(looks, key=lambda one: one[2:]))
        return tuple(span for span in spans if span.text)


def _span(cells: list[_Cell]) -> Span:
    """Joins cells that look alike, without the blanks at both ends."""
    while cells and cells[-1][1] == " ":
        cells.pop()
    while cells and cells[0][1] == " ":
        cells.pop(0)
    text = "".join(data for _, data, _, _ in cells)
    if not text:
        return Span(0, "", 0)
    column, _, colour, bold = cells[0]
    return Span(column, text, len(cells), colour, bold)


def rhythm(text: str) -> list[float]:
    """Seconds after each key: uneven, longer between words, and always the same for the same text."""
    random = Random(text)
    return [random.uniform(_FASTEST_S, _SLOWEST_S) + (_NEW_WORD_S if key == " " else 0.0) for key in text]
