"""`tpiedge top`: the running cluster, looked at every second."""

import contextlib
import itertools
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Final

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tpiedge.cli.cluster_words import (
    MACHINE_HEADER,
    OTHER_FORM,
    REQUEST_HEADER,
    STEP_PARTS,
    PictureJson,
    bar_cells,
    event_line,
    link_tables,
    machine_row,
    memory_parts,
    notes,
    request_row,
    step_parts,
    summary,
    timeline_cells,
    timeline_lines,
    timeline_title,
    title,
)
from tpiedge.cli.options import state_option
from tpiedge.cli.reach import MasterClient, admin_of
from tpiedge.cli.table import print_table
from tpiedge.errors import PeerError, UserError
from tpiedge.sanitise import sanitised
from tpiedge.units import format_bytes, format_seconds

_LOOK_S: Final = 1.0
_PATH: Final = "/admin/cluster"
_QUIT: Final = b"q"
#: Of the last ones.
_EVENTS: Final = 10
#: Of round trips, in a table that 80 columns have room for.
_TRIPS: Final = 7
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


@click.command()
@click.option(
    "--once", is_flag=True, help="Print plain lines once; so it is where the output is no terminal."
)
@click.option("--json", "as_json", is_flag=True, help="Print one object, for programs.")
@state_option
def top(once: bool, as_json: bool, state: Path | None) -> None:
    """Show what the machines of the running master do, anew every second.

    Memory, the parts of a step's time, links, requests and what happened last. Ends with q or Ctrl-C.
    """
    if as_json or once or not sys.stdout.isatty():
        with admin_of(state) as master:
            picture = _two_looks(master)
        if as_json:
            click.echo(json.dumps(picture))
            return
        with _well_formed():
            _print(picture)
        return
    with contextlib.suppress(KeyboardInterrupt):
        _watch(state)


def _two_looks(master: MasterClient) -> PictureJson:
    """What there is to see: rates, and nodes' counters, come with the second look."""
    master.get(_PATH)
    time.sleep(_LOOK_S)
    return master.get(_PATH)


def _print(picture: PictureJson) -> None:
    click.echo(summary(picture))
    print_table(MACHINE_HEADER, [machine_row(one) for one in picture["machines"]])
    for header, *rows in link_tables(picture, _TRIPS):
        print_table(header, rows)
    if picture["requests"]:
        print_table(REQUEST_HEADER, [request_row(one) for one in picture["requests"]])
    for line in [*timeline_lines(picture), *notes(picture)]:
        click.echo(line)
    for event in picture["events"][:_EVENTS]:
        click.echo(event_line(event, date.today()))


def _watch(state: Path | None) -> None:
    picture, problem = _look(state), ""  # what is wrong from the start ends the command
    with _well_formed(), _single_keys() as quits, Live(screen=True, auto_refresh=False) as live:
        while True:
            width, height = live.console.size
            screen = screen_of(picture, date.today(), width, problem, height)
            live.update(screen, refresh=True)
            if quits(_LOOK_S):
                return
            try:
                picture, problem = _look(state), ""
            except (UserError, PeerError) as error:  # the next look may find the master again
                problem = str(error)


def _look(state: Path | None) -> PictureJson:
    """At the master that runs now: another one may have another address and secret."""
    with admin_of(state) as master:
        return master.get(_PATH)


@contextlib.contextmanager
def _well_formed() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(OTHER_FORM) from None


@contextlib.contextmanager
def _single_keys() -> Iterator[Callable[[float], bool]]:
    """Gives a function that waits for so many seconds, or until q is pressed, and returns whether it was."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _quits
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _no_key(wait_s: float) -> bool:
    time.sleep(wait_s)
    return False


def _quits(wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while (left := deadline - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            typed = os.read(sys.stdin.fileno(), 64)
            if _QUIT in typed or not typed:
                return True
    return False


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
