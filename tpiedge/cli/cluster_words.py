"""What a master says of its cluster (`GET /admin/cluster`), in words: pure functions, for `tpiedge top` and `nodes`.

They raise KeyError, TypeError or ValueError where the master's answer has another form.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final, TypeAlias

from tpiedge.sanitise import sanitised, sanitised_line
from tpiedge.units import counted, format_bytes, format_seconds

OTHER_FORM: Final = "the master answers in another form: is it of another version?"

MACHINE_HEADER: Final = ("machine", "rank", "state", "heads", "FFN", "memory", "step", "disk", "link")
REQUEST_HEADER: Final = ("request", "from", "state", "age", "prompt", "tokens", "tokens/s")

_MEMORY: Final = ("pinned", "window", "kv", "kv_room", "program", "free")
STEP_PARTS: Final = ("compute", "wait", "network", "disk")
"""Of a step's time."""
#: Of a machine's line on plain paper.
_LETTERS: Final = {"compute": "#", "wait": ".", "network": "~", "disk": "d", "": " "}
_LINE: Final = 72

PictureJson: TypeAlias = Mapping[str, Any]
"""The master's picture, or a part of it."""


def named(name: str, host: str | None) -> str:
    """The machine's name as it calls itself, with the one that `revoke` takes."""
    return sanitised(f"{name} ({host})" if host not in (None, "", name) else name)


def title(node: PictureJson) -> str:
    """As `named`."""
    return named(node["name"], node.get("host"))


def summary(picture: PictureJson) -> str:
    """The cluster in a line."""
    totals = picture["totals"]
    parts = [f"{sanitised(picture['model']['name'])}: {_readiness(picture)}"]
    parts.append(f"{totals['running']:d} running, {totals['queued']:d} queued")
    if totals["tokens_per_s"] is not None:
        parts.append(f"{totals['tokens_per_s']:.1f} tokens/s")
    if totals["drafted"]:
        part = totals["accepted"] / totals["drafted"]
        parts.append(f"{part:.0%} of {counted(totals['drafted'], 'guess', 'guesses')} came true")
    if totals["kv_pages"]:
        parts.append(f"KV cache {totals['kv_pages_used']:d} of {counted(totals['kv_pages'], 'page')}")
    return "; ".join(parts)


def machine_row(machine: PictureJson) -> tuple[str, ...]:
    """Its cells under MACHINE_HEADER."""
    share, memory, link = machine["share"], machine["memory"], machine["link"]
    takes_part = machine["rank"] is not None
    return (
        title(machine),
        str(machine["rank"]) if takes_part else "-",
        _state(machine),
        f"{share['heads']:.0%}" if takes_part else "-",
        f"{share['ffn']:.0%}" if takes_part else "-",
        _memory(memory) if takes_part else "-",
        _step(machine["step"]),
        format_bytes(machine["disk"]["held_bytes"]) if machine["disk"]["held_bytes"] else "-",
        f"{format_seconds(link['round_trip_s'])}, {format_bytes(link['bytes_per_s'])}/s" if link else "-",
    )


def link_tables(picture: PictureJson, columns: int) -> list[list[tuple[str, ...]]]:
    """The round trips between workers, of which each is a row and, by its rank, a column: tables with so many `columns`
    of them at most, whose first row is the header. None where no link is known."""
    workers = sorted((one for one in picture["machines"] if one["links"]), key=lambda one: int(one["rank"]))
    trips = {
        (one["name"], other["name"]): format_seconds(other["round_trip_s"])
        for one in workers
        for other in one["links"]
    }
    found = []
    for start in range(0, len(workers) - 1, columns):
        shown = workers[start : min(start + columns, len(workers) - 1)]
        table = [("between workers", *(str(one["rank"]) for one in shown))]
        for at, row in enumerate(workers[start:]):
            cells = (trips.get((row["name"], one["name"]), "-") for one in shown[:at])
            name = sanitised(row["host"] or row["name"])
            table.append((f"{row['rank']:d} {name}", *cells, *("" for _ in shown[at:])))
        found.append(table)
    return found


def memory_parts(machine: PictureJson) -> tuple[tuple[str, int], ...]:
    """What the memory that the machine offers is for, in bytes; what is 0 is left out."""
    memory = machine["memory"]
    found = ((part, int(memory[f"{part}_bytes"])) for part in _MEMORY)
    return tuple((part, count) for part, count in found if count > 0)


def step_parts(machine: PictureJson) -> tuple[tuple[str, float], ...]:
    """Where the time of a step went, in seconds; nothing while none is taken."""
    step = machine["step"]
    return tuple((part, float(step[f"{part}_s"])) for part in STEP_PARTS) if step is not None else ()


def request_row(request: PictureJson) -> tuple[str, ...]:
    """Its cells under REQUEST_HEADER."""
    return (
        sanitised(request["id"]),
        _sender(request["sender"]),
        sanitised(request["state"]),
        "-" if request["age_s"] is None else format_seconds(request["age_s"]),
        _prompt(request),
        f"{request['tokens']:d} of {request['max_tokens']:d}",
        f"{request['tokens_per_s']:.1f}" if request["tokens_per_s"] else "-",
    )


def timeline_title(timeline: PictureJson) -> str:
    """Which step it is of."""
    at = datetime.fromtimestamp(timeline["at"])
    return f"step {timeline['step']:d} at {at:%H:%M:%S}: {format_seconds(timeline['took_s'])}"


def timeline_cells(machine: PictureJson, took_s: float, width: int) -> list[str]:
    """What a machine did in the step, `width` parts of equal length: the one of STEP_PARTS that took most of each, ""
    where it did nothing."""
    spent = [dict.fromkeys(STEP_PARTS, 0.0) for _ in range(width)]
    for part in STEP_PARTS:
        for start, end in machine["spans"][part]:
            first, last = (min(width, max(0.0, at / took_s * width)) for at in (start, end))
            for cell in range(int(first), min(width, math.ceil(last))):
                spent[cell][part] += min(last, cell + 1) - max(first, cell)
    return [max(one, key=lambda part: one[part]) if any(one.values()) else "" for one in spent]


def timeline_lines(picture: PictureJson) -> list[str]:
    """What all machines did in one step, without colours; nothing where none is known."""
    timeline = picture["timeline"]
    if timeline is None or timeline["took_s"] <= 0:
        return []
    names = [title(one) for one in timeline["machines"]]
    room = max(map(len, names), default=0)
    keys = ", ".join(f"{_LETTERS[part]} {part}" for part in STEP_PARTS)
    found = [f"{timeline_title(timeline)} ({keys})"]
    for name, machine in zip(names, timeline["machines"], strict=True):
        cells = timeline_cells(machine, timeline["took_s"], _LINE)
        found.append(f"{name:{room}}  {''.join(_LETTERS[cell] for cell in cells)}")
    return found


def notes(picture: PictureJson) -> list[str]:
    """Why machines and requests are as they are, and what the user is asked for; a line each."""
    found = [
        f"{title(one)}: {sanitised(one['why'])}"
        for one in picture["machines"]
        if one["why"] and one["state"] != "serving"
    ]
    found += [
        f"{sanitised(one['id'])} pauses for {format_seconds(one['paused_s'])}: {sanitised(one['why'])}"
        for one in picture["requests"]
        if one["why"]
    ]
    for join in picture["waiting"]:
        place = f"{sanitised(join['name'])} ({sanitised(join['address'])})"
        found.append(f"{place} waits to join: type the code that it shows: tpiedge nodes approve CODE")
    return found


def event_line(event: PictureJson, today: date) -> str:
    """When, who, what and why; the day where it is not today."""
    at = datetime.fromtimestamp(event["at"])
    when = f"{at:%H:%M:%S}" if at.date() == today else f"{at:%Y-%m-%d %H:%M:%S}"
    words = [when, sanitised(event["machine"]), _EVENTS.get(event["kind"], sanitised(event["kind"]))]
    line = " ".join(word for word in words if word)
    return f"{line}: {sanitised_line(event['detail'])}" if event["detail"] else line


_EVENTS: Final = {
    "joined": "joined",
    "left": "left",
    "lost": "was lost",
    "drained": "was drained",
    "undrained": "may have a part again",
    "cleared": "is tried again",
    "revoked": "was shut out",
    "planned": "a new plan begins",
    "serving": "the plan serves",
    "recovered": "answers go on",
    "interrupted": "answers pause",
    "plan failed": "the new plan failed",
    "no plan": "no plan",
}


def _readiness(picture: PictureJson) -> str:
    if picture["ready"]:
        return "ready"
    return f"not ready: {sanitised(picture['reason'])}" if picture["reason"] else "not ready"


def _state(machine: PictureJson) -> str:
    state = sanitised(machine["state"])
    fetching = machine["fetching"]
    if fetching is not None:
        return f"{state}, fetched {fetching['done_bytes'] / max(1, fetching['total_bytes']):.0%}"
    if machine["silent_s"] and machine["state"] != "lost":
        return f"{state}, silent for {format_seconds(machine['silent_s'])}"
    return state


def _memory(memory: PictureJson) -> str:
    budget, planned = memory["budget_bytes"], memory["planned_bytes"]
    return f"{format_bytes(planned)} of {format_bytes(budget)}" if budget else format_bytes(planned)


def _sender(sender: PictureJson | None) -> str:
    """The name of an API key, or an address."""
    if sender is None:
        return "-"
    if sender["kind"] == "former key":
        return "a key that is gone"
    return sanitised(sender["name"]) or "a key without a name"


def _prompt(request: PictureJson) -> str:
    """How long it is, or how far it is read."""
    reading = request["reading"]
    if reading is None:
        return str(request["prompt_tokens"])
    told = f"{reading['done_tokens']:d} of {reading['of_tokens']:d}"
    return told if reading["left_s"] is None else f"{told}, {format_seconds(reading['left_s'])} left"


def _step(step: PictureJson | None) -> str:
    if step is None:
        return "-"
    total = sum(float(step[f"{part}_s"]) for part in STEP_PARTS)
    if total <= 0:
        return "-"
    shown = [(part, step[f"{part}_s"] / total) for part in STEP_PARTS]
    return f"{format_seconds(total)}: " + ", ".join(
        f"{part} {portion:.0%}" for part, portion in shown if portion >= 0.005
    )


def bar_cells(parts: Sequence[tuple[str, float]], width: int) -> list[tuple[str, int]]:
    """How many of `width` cells each part gets: together all of them, and each that is not nothing at least one. There
    are fewer parts than cells."""
    some = [(part, size) for part, size in parts if size > 0]
    if not some:
        return []
    total = sum(size for _, size in some)
    cells = {part: max(1, int(size / total * width)) for part, size in some}
    largest, _ = max(some, key=lambda one: one[1])
    cells[largest] += width - sum(cells.values())
    return list(cells.items())
