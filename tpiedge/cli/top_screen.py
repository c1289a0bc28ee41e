"""What `tpiedge top` shows of a cluster on a terminal: bars and colours."""

import itertools
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tpiedge.cli.cluster_words import (
    REQUEST_HEADER,
    STEP_PARTS,
    PictureJson,
    bar_cells,
    event_line,
    link_tables,
    memory_parts,
    notes,
    request_row,
    step_parts,
    summary,
    timeline_cells,
    timeline_title,
    title,
)
from tpiedge.sanitise import sanitised
from tpiedge.units import format_bytes, format_seconds

#: Of the last ones; a screen has few lines.
_EVENTS: Final = 8
#: Cells of a bar, on a screen of so many columns at least; there is room for the disk, too.
_BARS: Final = (12, 20)
_WIDE: Final = 100
_MACHINE: Final = ("machine", "state", "share", "memory", "step", "link", "disk")
#: Of a machine's name beside what it did in a step, and beside its round trips, which have so many cells each.
_NAME: Final = 16
_TRIP: Final = 9
_FAINT: Final = "bright_black"
_COLOURS: Final = {
    # Memory has shades of a hue that no part of a step's time has.
    "pinned": "color(24)",
    "window": "color(67)",
    "kv": "color(110)",
    "kv_room": "bright_black",
    "program": "color(137)",
    "compute": "green",
    "wait": "yellow",
    "network": "blue",
    "disk": "magenta",
}
_NAMES: Final = {
    "pinned": "weights",
    "window": "window",
    "kv": "KV cache",
    "kv_room": "room for it",
    "wait": "waits",
}
_STATES: Final = {
    "serving": "green",
    "loading": "cyan",
    "left out": "red",
    "lost": "red",
    "draining": "yellow",
}


def screen_of(
    picture: PictureJson, today: date, width: int, problem: str = "", height: int | None = None
) -> RenderableType:
    """The whole screen, `width` columns wide; what has no room in `height` lines is left out above the last one.
    `problem`: why the picture is an old one."""
    return _Footed(Group(*_screen(picture, today, width, problem)), Text("\nq ends", style=_FAINT), height)


class _Footed:
    """Of the body so many lines as leave room on the screen for the foot, which has two."""

    def __init__(self, body: RenderableType, foot: Text, height: int | None) -> None:
        self._body = body
        self._foot = foot
        self._room = None if height is None else max(0, height - 2)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self._body, options.update(height=None), pad=False)[: self._room]:
            yield from line
            yield Segment.line()
        yield self._foot


def _screen(picture: PictureJson, today: date, width: int, problem: str) -> Iterator[RenderableType]:
    yield Text(summary(picture), style="bold")
    if problem:
        yield Text(problem, style="bold red")
    wide = width >= _WIDE
    columns = len(_MACHINE) if wide else len(_MACHINE) - 1
    rows = [_machine(one, _BARS[wide])[:columns] for one in picture["machines"]]
    yield _table(_MACHINE[:columns], rows)
    yield _legend("memory", ("pinned", "window", "kv", "kv_room", "program"))
    yield _legend("step", STEP_PARTS)
    if picture["timeline"] is not None and picture["timeline"]["took_s"] > 0:
        yield from _timeline(picture["timeline"], width)
    if picture["requests"]:
        yield Text()
        yield _table(
            REQUEST_HEADER, [[Text(cell) for cell in request_row(one)] for one in picture["requests"]]
        )
    for part in (notes(picture), [event_line(event, today) for event in picture["events"][:_EVENTS]]):
        if part:
            yield Text()
        for line in part:
            yield Text(line, overflow="ellipsis", no_wrap=True)
    # They stay as they were measured: where the screen has too few lines, these are the first to be missing.
    for header, *trips in link_tables(picture, max(1, (width - _NAME) // _TRIP)):
        yield Text()
        yield _table(header, [[_name(name), *map(Text, cells)] for name, *cells in trips])


def _timeline(timeline: PictureJson, width: int) -> Iterator[Text]:
    """A line per machine: what it did in one step."""
    names = [title(one) for one in timeline["machines"]]
    room = min(_NAME, max(map(len, names)))
    yield Text(f"\n{timeline_title(timeline)}", style="underline")
    for name, machine in zip(names, timeline["machines"], strict=True):
        line = Text(f"{name[:room]:{room}}  ")
        cells = timeline_cells(machine, timeline["took_s"], max(1, width - room - 3))
        for part, same in itertools.groupby(cells):
            count = len(list(same))
            line.append(("█" if part else " ") * count, _COLOURS.get(part, ""))
        yield line


def _machine(machine: PictureJson, bar: int) -> list[Text]:
    """Its cells, of two lines each, with bars of so many cells."""
    memory, share, link, disk = machine["memory"], machine["share"], machine["link"], machine["disk"]
    state, spent_s = machine["state"], sum(part for _, part in step_parts(machine))
    takes_part = machine["rank"] is not None
    shares = (f"{share['heads']:.0%} heads", f"{share['ffn']:.0%} FFN") if takes_part else ("-", "")
    budget = f"/{memory['budget_bytes'] / 1e9:.1f}" if memory["budget_bytes"] else ""
    used = f"{memory['planned_bytes'] / 1e9:.1f}{budget} GB"
    return [
        _lines(sanitised(machine["host"] or machine["name"]), sanitised(machine["name"] if machine["host"] else "")),
        _lines(sanitised(state), _more_of(machine), _STATES.get(state, "")),
        _lines(*shares),
        _with_bar(memory_parts(machine), used, bar) if takes_part else Text("-"),
        _with_bar(step_parts(machine), format_seconds(spent_s), bar) if spent_s else Text("-"),
        _lines(format_seconds(link["round_trip_s"]), f"{format_bytes(link['bytes_per_s'])}/s") if link else Text("-"),
        _lines(
            format_bytes(disk["held_bytes"]) if disk["held_bytes"] else "-",
            f"{format_bytes(disk['read_bytes_per_s'])}/s" if disk["read_bytes_per_s"] else "",
        ),
    ]  # fmt: skip


def _more_of(machine: PictureJson) -> str:
    """What is said below the state."""
    if machine["fetching"] is not None:
        return f"{machine['fetching']['done_bytes'] / max(1, machine['fetching']['total_bytes']):.0%} there"
    if machine["silent_s"]:
        return f"for {format_seconds(machine['silent_s'])}"
    if machine["left_out_s"]:
        return f"{machine['left_out_s']} s more"
    return "" if machine["rank"] is None else f"rank {machine['rank']}"


def _name(name: str) -> Text:
    found = Text(name)
    found.truncate(_NAME, overflow="ellipsis")
    return found


def _lines(first: str, second: str, style: str = "") -> Text:
    return Text(first, style).append(f"\n{second}", _FAINT)


def _with_bar(parts: Sequence[tuple[str, float]], words: str, width: int) -> Text:
    found = Text()
    for part, cells in bar_cells(parts, width):
        if part == "free":
            found.append("·" * cells, _FAINT)
        else:
            found.append("█" * cells, _COLOURS[part])
    return found.append(f"\n{words}")


def _legend(of: str, parts: Sequence[str]) -> Text:
    found = Text(f"{of}: ", style=_FAINT)
    for part in parts:
        found.append("█ ", _COLOURS[part]).append(f"{_NAMES.get(part, part)}  ")
    return found


def _table(header: Sequence[str], rows: Sequence[Sequence[Text]]) -> Table:
    table = Table(box=None, pad_edge=False, expand=False)
    for name in header:
        table.add_column(name, header_style="underline", overflow="ellipsis", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
