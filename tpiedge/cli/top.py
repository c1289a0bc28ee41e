"""`tpiedge top` shows the running cluster. Malformed JSON raises KeyError, TypeError, ValueError or AttributeError."""

import contextlib
import json
import math
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import click

from tpiedge.cli.listing import json_option, screen_columns, table_lines, wrapped
from tpiedge.cli.options import option, state_option
from tpiedge.cli.reach import admin_of
from tpiedge.errors import PeerError, UserError
from tpiedge.progress import LiveLine
from tpiedge.sanitise import sanitised, sanitised_line
from tpiedge.units import counted, format_bytes, format_seconds

PictureJson: TypeAlias = Mapping[str, Any]
_T = TypeVar("_T")

_LOOK_S: Final = 1.0
_MACHINES: Final = (
    *("machine", "rank", "state", "heads", "FFN", "memory", "link", "on disk"),
    *("step", "compute", "wait", "network", "disk"),
)
_REQUESTS: Final = ("from", "state", "age", "prompt", "tokens", "tokens/s", "request")
#: A step's parts, with their letters on a machine's timeline.
_PARTS: Final = {"compute": "#", "wait": ".", "network": "~", "disk": "d"}
_EVENTS: Final = {
    "joined": "joined",
    "left": "left",
    "lost": "was lost",
    "drained": "was drained",
    "undrained": "is back in use",
    "cleared": "is retried",
    "revoked": "was revoked",
    "planned": "new plan",
    "serving": "serving",
    "recovered": "answers resumed",
    "interrupted": "answers paused",
    "plan failed": "new plan failed",
    "no plan": "no plan",
}


@click.command()
@option("--once", "Print plain lines once, the default if the output is no terminal.", is_flag=True)
@json_option
@state_option
def top(once: bool, as_json: bool, state: Path | None) -> None:
    """Watch the running cluster, updated every second.

    Shows memory, the parts of a step's time, links, requests and events. q or Ctrl-C quits.
    """
    if not (as_json or once) and sys.stdout.isatty():
        with contextlib.suppress(KeyboardInterrupt):
            _watch(state)
        return
    _look(state)
    time.sleep(_LOOK_S)  # rates, and nodes' counters, come with the second look
    picture = _look(state)
    if as_json:
        click.echo(json.dumps(picture))
        return
    with well_formed():
        click.echo("\n".join(picture_lines(picture, date.today(), screen_columns())))


def _look(state: Path | None) -> PictureJson:
    """Asks the current master; a restarted master has another address and secret."""
    with admin_of(state) as master:
        return master.get("/admin/cluster")


@contextlib.contextmanager
def well_formed() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError("cannot read what the master sent: does it have another version?") from None


def wait_for(
    look: Callable[[], tuple[_T | None, str]], limit_s: float, title: str, late: Callable[[str], str]
) -> _T:
    """Polls `look` for `limit_s`. Raises PeerError."""
    deadline, progress = time.monotonic() + limit_s, LiveLine()
    try:
        with well_formed():
            while True:
                found, why = look()
                if found is not None:
                    return found
                if time.monotonic() >= deadline:
                    raise PeerError(late(why))
                progress.update(f"{title}: {why}")
                time.sleep(0.2)
    finally:
        progress.finish()


def _watch(state: Path | None) -> None:
    picture, problem = _look(state), ""  # an error at the start ends the command
    keys = [sys.stdin] if sys.stdin.isatty() else []
    with well_formed(), _full_screen(bool(keys)):
        while True:
            lines = screen_lines(picture, problem, shutil.get_terminal_size())
            click.echo("\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in lines) + "q quits\x1b[J", nl=False)
            if select.select(keys, [], [], _LOOK_S)[0]:
                typed = os.read(sys.stdin.fileno(), 64)
                if not typed or b"q" in typed:
                    return
            try:
                picture, problem = _look(state), ""
            except (UserError, PeerError) as error:  # the next look may find the master again
                problem = str(error)


@contextlib.contextmanager
def _full_screen(has_keys: bool) -> Iterator[None]:
    before = termios.tcgetattr(sys.stdin) if has_keys else None
    click.echo("\x1b[?1049h\x1b[?25l", nl=False)
    try:
        if before is not None:
            tty.setcbreak(sys.stdin)
        yield
    finally:
        click.echo("\x1b[?25h\x1b[?1049l", nl=False)
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def screen_lines(picture: PictureJson, problem: str, size: tuple[int, int]) -> list[str]:
    """Returns lines for a screen of `size` (columns, lines). One line stays free. `problem`: why the picture is old, or
    ""."""
    width, height = size
    said = wrapped(problem, width - 1) if problem else []
    lines = [*said, *picture_lines(picture, date.today(), width - 1)][: max(0, height - 1)]
    return [line if len(line) < width else f"{line[: width - 2]}…" for line in lines]


def picture_lines(picture: PictureJson, today: date, columns: int | None = None) -> Iterator[str]:
    """Yields lines that show `picture`, at most `columns` wide; None: no limit."""
    called = names_of(picture["machines"])
    yield from wrapped(summary(picture), columns)
    rows = [(called[one["name"]], *machine_row(one)) for one in picture["machines"]]
    yield from table_lines(_MACHINES, rows, columns)
    if picture["requests"]:
        yield from table_lines(_REQUESTS, [request_row(one) for one in picture["requests"]], columns)
    if picture["timeline"] is not None and picture["timeline"]["took_s"] > 0:
        yield from timeline_lines(picture["timeline"], columns)
    for line in (*notes(picture, called), *(event_line(event, today) for event in picture["events"][:10])):
        yield from wrapped(line, columns)
    room = max(map(len, called.values()), default=0)
    yield from link_lines(picture, 7 if columns is None else max(1, (columns - room - 3) // 10))


def names_of(machines: Iterable[PictureJson]) -> Mapping[str, str]:
    """Returns labels, keyed by machine name. A label is the host, or 'host (name)' if several machines share the
    host."""
    hosts = {one["name"]: str(one.get("host") or one["name"]) for one in machines}
    shared = Counter(hosts.values())
    return {name: named(name, host) if shared[host] > 1 else sanitised(host) for name, host in hosts.items()}


def named(name: str, host: str | None) -> str:
    return sanitised(f"{host} ({name})" if host not in (None, "", name) else name)


def title(node: PictureJson) -> str:
    return named(node["name"], node.get("host"))


def summary(picture: PictureJson) -> str:
    totals, reason = picture["totals"], sanitised(picture["reason"])
    state = "ready" if picture["ready"] else "asleep" if picture["asleep"] else "not ready"
    parts = [f"{sanitised(picture['model']['name'])}: {state}" + (f": {reason}" if reason else "")]
    parts.append(f"{totals['running']:d} running, {totals['queued']:d} queued")
    if totals["tokens_per_s"]:
        parts.append(f"{totals['tokens_per_s']:.1f} tokens/s")
    if totals["drafted"]:
        part = totals["accepted"] / totals["drafted"]
        parts.append(f"{part:.0%} of {counted(totals['drafted'], 'draft')} accepted")
    if totals["kv_pages"]:
        parts.append(f"KV cache {totals['kv_pages_used']:d} of {counted(totals['kv_pages'], 'page')}")
    return "; ".join(parts)


def machine_row(machine: PictureJson) -> tuple[str, ...]:
    share, memory, link, step = machine["share"], machine["memory"], machine["link"], machine["step"]
    spent = {part: float(step[f"{part}_s"]) for part in _PARTS} if step is not None else {}
    total_s = sum(spent.values())
    takes_part = machine["rank"] is not None
    state, fetching = sanitised(machine["state"]), machine["fetching"]
    if fetching is not None:
        state += f", fetched {fetching['done_bytes'] / max(1, fetching['total_bytes']):.0%}"
    elif machine["silent_s"]:
        state += f", silent for {format_seconds(machine['silent_s'])}"
    budget = f"/{memory['budget_bytes'] / 1e9:.1f}" if memory["budget_bytes"] else ""
    return (
        str(machine["rank"]) if takes_part else "-",
        state,
        *((f"{share['heads']:.0%}", f"{share['ffn']:.0%}") if takes_part else ("-", "-")),
        f"{memory['planned_bytes'] / 1e9:.1f}{budget} GB" if takes_part else "-",
        f"{format_seconds(link['round_trip_s'])}, {format_bytes(link['bytes_per_s'])}/s" if link else "-",
        format_bytes(machine["disk"]["held_bytes"]) if machine["disk"]["held_bytes"] else "-",
        format_seconds(total_s) if total_s else "-",
        *(f"{spent[part] / total_s:.0%}" if total_s else "-" for part in _PARTS),
    )


def request_row(request: PictureJson) -> tuple[str, ...]:
    sender, reading, prompt = request["sender"], request["reading"], str(request["prompt_tokens"])
    name = "-"
    if sender is not None:
        gone = sender["kind"] == "former key"
        name = "removed key" if gone else sanitised(sender["name"]) or "unnamed key"
    if reading is not None:
        left = "" if reading["left_s"] is None else f", {format_seconds(reading['left_s'])} left"
        prompt = f"{reading['done_tokens']:d} of {reading['of_tokens']:d}{left}"
    return (
        name,
        sanitised(request["state"]),
        "-" if request["age_s"] is None else format_seconds(request["age_s"]),
        prompt,
        f"{request['tokens']:d} of {request['max_tokens']:d}",
        f"{request['tokens_per_s']:.1f}" if request["tokens_per_s"] else "-",
        sanitised(request["id"]),
    )


def timeline_lines(timeline: PictureJson, columns: int | None) -> Iterator[str]:
    keys = ", ".join(f"{letter} {part}" for part, letter in _PARTS.items())
    at, took = datetime.fromtimestamp(timeline["at"]), format_seconds(timeline["took_s"])
    yield f"step {timeline['step']:d} at {at:%H:%M:%S}: {took} ({keys})"
    called = names_of(timeline["machines"])
    room = max(map(len, called.values()), default=0)
    letters = 60 if columns is None else max(8, min(60, columns - room - 2))
    for machine in timeline["machines"]:
        yield f"{called[machine['name']]:{room}}  {step_line(machine, timeline['took_s'], letters)}"


def step_line(machine: PictureJson, took_s: float, width: int) -> str:
    """Draws a step of `took_s` seconds as `width` letters. Each shows what took longest in its part of this
    time; blank means idle."""
    spent = [dict.fromkeys(_PARTS, 0.0) for _ in range(width)]
    for part in _PARTS:
        for start, end in machine["spans"][part]:
            first, last = (min(width, max(0.0, at / took_s * width)) for at in (start, end))
            for cell in range(int(first), min(width, math.ceil(last))):
                spent[cell][part] += min(last, cell + 1) - max(first, cell)
    return "".join(
        _PARTS[max(one, key=lambda part: one[part])] if any(one.values()) else " " for one in spent
    )


def notes(picture: PictureJson, called: Mapping[str, str]) -> Iterator[str]:
    for one in picture["machines"]:
        read, written = (one["disk"][f"kv_{way}_bytes_per_s"] or 0 for way in ("read", "written"))
        if read or written:
            rates = f"{format_bytes(read)}/s from disk, {format_bytes(written)}/s to disk"
            yield f"{called[one['name']]}: KV pages {rates}"
        if one["why"] and one["state"] != "serving":
            yield f"{called[one['name']]}: {sanitised(one['why'])}"
    for one in picture["requests"]:
        if one["why"]:
            yield f"{sanitised(one['id'])} paused for {format_seconds(one['paused_s'])}: {sanitised(one['why'])}"
    yield from waiting_lines(picture["waiting"])


def waiting_lines(waiting: list[PictureJson]) -> Iterator[str]:
    for join in waiting:
        place = f"{sanitised(join['name'])} ({sanitised(join['address'])})"
        yield f"{place} waits to join: tpiedge nodes approve CODE, with the code on its screen"


def event_line(event: PictureJson, today: date) -> str:
    at = datetime.fromtimestamp(event["at"])
    when = f"{at:%H:%M:%S}" if at.date() == today else f"{at:%Y-%m-%d %H:%M:%S}"
    words = [when, sanitised(event["machine"]), _EVENTS.get(event["kind"], sanitised(event["kind"]))]
    line = " ".join(word for word in words if word)
    return f"{line}: {sanitised_line(event['detail'])}" if event["detail"] else line


def link_lines(picture: PictureJson, columns: int = 7) -> Iterator[str]:
    """Yields round trips between workers, in tables of at most `columns` workers."""
    workers = sorted((one for one in picture["machines"] if one["links"]), key=lambda one: int(one["rank"]))
    trips = {
        (one["name"], other["name"]): format_seconds(other["round_trip_s"])
        for one in workers
        for other in one["links"]
    }
    for start in range(0, len(workers) - 1, columns):
        shown = workers[start : min(start + columns, len(workers) - 1)]
        rows = []
        for at, row in enumerate(workers[start:]):
            cells = (trips.get((row["name"], one["name"]), "-") for one in shown[:at])
            name = sanitised(row["host"] or row["name"])
            rows.append((f"{row['rank']:d} {name}", *cells, *("" for _ in shown[at:])))
        yield from table_lines(("between workers", *(str(one["rank"]) for one in shown)), rows)
