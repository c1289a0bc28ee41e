"""Snapshots of a terminal as one animated SVG, without a script and without a font.

Each row of the screen is a reel: all lines that the row ever shows stand one below the other behind a window of one
line's height, and keyframes move the reel to the line of the moment. So a change costs some bytes only in the rows
that change, and a line that scrolls through many rows is written once, in <defs>. What stands outside of keyframes
is the last snapshot: a reader who prefers reduced motion sees that one alone.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar
from xml.sax.saxutils import escape

from tpiedge.sanitise import sanitised

from .snapshots import Line, Snapshot, Span

HOLD_S = 5.0
"""How long the last snapshot stays before all begins again."""

_CELL = 8.4
_ROW = 20
_BASELINE = 15
_MARGIN = 16
_BAR = 34
_FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"
_PAPER, _BORDER, _BUTTON, _CURSOR, _INK = "#1b1f27", "#444c56", "#596270", "#768390", "#dfe5ec"

_COLOURS = {
    "default": _INK,
    "black": "#6e7681",  # on dark paper
    "red": "#ff7b72",
    "green": "#6fcf7f",
    "brown": "#e3b341",
    "blue": "#79b8ff",
    "magenta": "#d2a8ff",
    "cyan": "#56d4dd",
    "white": "#dfe5ec",
    "brightblack": "#8b949e",
    "brightred": "#ffa198",
    "brightgreen": "#8ee69d",
    "brightbrown": "#f2cc60",
    "brightblue": "#a5d6ff",
    "brightmagenta": "#e2c5ff",
    "brightcyan": "#8ceaf0",
    "brightwhite": "#ffffff",
}

_T = TypeVar("_T", bound=Hashable)
_Move = tuple[float, float, float]
"""From when on, in seconds; to where, in pixels: (x, y)."""


def picture(snapshots: Sequence[Snapshot], columns: int) -> str:
    """The SVG that plays `snapshots` - one or more, the first at 0 s - again and again."""
    rows = len(snapshots[-1].lines)
    period_s = snapshots[-1].at_s + HOLD_S
    reels = [_changes((one.at_s, one.lines[row]) for one in snapshots) for row in range(rows)]
    names = _names(line for reel in reels for _, line in reel)
    moves = {f"r{row}": _reel_moves(reel) for row, reel in enumerate(reels)}
    moves["c"] = _cursor_moves(snapshots)
    styles = [_style(period_s), *(_motion(name, some, period_s) for name, some in moves.items())]
    body = [
        *(_definition(name, line) for line, name in names.items()),
        "</defs>",
        *_window(columns, rows),
        f'<svg y="0" height="{rows * _ROW}"><rect id="c" class="m" width="{_CELL}" height="{_ROW}"/></svg>',
        *(_reel(row, reel, names) for row, reel in enumerate(reels)),
        "</g></svg>\n",
    ]
    return "\n".join([_opening(columns, rows), "<style>", *styles, "</style>", "<defs>", *body])


def _changes(values: Iterable[tuple[float, _T]]) -> list[tuple[float, _T]]:
    """Drops each (time, value) whose value equals the one before."""
    return [next(several) for _, several in groupby(values, key=lambda one: one[1])]


def _names(lines: Iterable[Line]) -> dict[Line, str]:
    """Names each distinct line in <defs>, except an empty one."""
    distinct = dict.fromkeys(line for line in lines if line)
    return {line: f"l{place}" for place, line in enumerate(distinct)}


def _slots(reel: Sequence[tuple[float, Line]]) -> dict[Line, int]:
    """Returns the place of each line in its reel, from the top."""
    return {line: place for place, line in enumerate(dict.fromkeys(line for _, line in reel))}


def _reel_moves(reel: Sequence[tuple[float, Line]]) -> list[_Move]:
    slots = _slots(reel)
    return [(at_s, 0, -slots[line] * _ROW) for at_s, line in reel]


def _cursor_moves(snapshots: Sequence[Snapshot]) -> list[_Move]:
    """A hidden cursor waits to the left of the text, where nothing shows."""
    changes = _changes((one.at_s, one.cursor or (0, -2)) for one in snapshots)
    return [(at_s, column * _CELL, row * _ROW) for at_s, (row, column) in changes]


# --- styles ---


def _style(period_s: float) -> str:
    return (
        f"text{{font:14px {_FONTS}}}\n"
        f"#c{{fill:{_CURSOR}}}\n"
        f".m{{animation:{period_s:.3f}s step-end infinite}}\n"
        "@media (prefers-reduced-motion:reduce){.m{animation:none!important}}"
    )


def _motion(name: str, moves: Sequence[_Move], period_s: float) -> str:
    """Keyframes for what moves, and where it is at the end."""
    at_the_end = _transform(moves[-1])
    if len(moves) == 1:
        return f"#{name}{{{at_the_end}}}"
    stops = "".join(f"{100 * move[0] / period_s:.3f}%{{{_transform(move)}}}" for move in moves)
    return f"#{name}{{animation-name:{name};{at_the_end}}}\n@keyframes {name}{{{stops}}}"


def _transform(move: _Move) -> str:
    return f"transform:translate({move[1]:.6g}px,{move[2]:.6g}px)"


# --- elements ---


def _opening(columns: int, rows: int) -> str:
    width, height = _size(columns, rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="A terminal session" fill="{_INK}">'
    )


def _size(columns: int, rows: int) -> tuple[int, int]:
    return round(columns * _CELL) + 2 * _MARGIN, rows * _ROW + _BAR + _MARGIN


def _window(columns: int, rows: int) -> list[str]:
    """The frame, and the opened group in which the screen's corner is the origin."""
    width, height = _size(columns, rows)
    frame = f'x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"'
    buttons = (f'<circle cx="{_MARGIN + 4 + 18 * place}" cy="17" r="5"/>' for place in range(3))
    return [
        f'<rect {frame} fill="{_PAPER}" stroke="{_BORDER}"/>',
        f'<g fill="{_BUTTON}">{"".join(buttons)}</g>',
        f'<g transform="translate({_MARGIN},{_BAR})">',
    ]


def _definition(name: str, line: Line) -> str:
    return f'<g id="{name}">{"".join(map(_text, line))}</g>'


def _text(span: Span) -> str:
    """Sets the width, because the reader's font is unknown and blanks side by side would collapse."""
    place = f'x="{span.column * _CELL:.6g}" y="{_BASELINE}" textLength="{span.cells * _CELL:.6g}"'
    colour = _COLOURS.get(span.colour, f"#{span.colour}")
    look = f' fill="{colour}"' * (colour != _INK) + ' font-weight="bold"' * span.bold
    content = sanitised(span.text).replace("  ", "\N{NO-BREAK SPACE}" * 2)
    return f"<text {place}{look}>{escape(content)}</text>"


def _reel(row: int, reel: Sequence[tuple[float, Line]], names: dict[Line, str]) -> str:
    """The lines of one row behind the row's window."""
    slots = _slots(reel)
    uses = (f'<use href="#{names[line]}" y="{slots[line] * _ROW}"/>' for line in slots if line)
    return f'<svg y="{row * _ROW}" height="{_ROW}"><g id="r{row}" class="m">{"".join(uses)}</g></svg>'
