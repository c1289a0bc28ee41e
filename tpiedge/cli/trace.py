"""`tpiedge trace`: what a recorded run says, in figures or as a picture."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.table import print_table
from tpiedge.cli.types import Location, Number
from tpiedge.errors import UserError
from tpiedge.host.device import available_memory_bytes
from tpiedge.tracing.chrome import Trace, read_trace
from tpiedge.tracing.collection import writable
from tpiedge.tracing.intervals import Interval
from tpiedge.tracing.summary import NodeSummary, summarize
from tpiedge.tracing.tracer import LANES
from tpiedge.units import format_bytes, format_seconds

__all__ = ["trace"]

_STEPS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


class _Steps(click.ParamType[tuple[int, int]]):
    name = "N|N-M"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = _STEPS.fullmatch(str(value))
        if found is None or int(found[2] or found[1]) < int(found[1]):
            self.fail(f"{value!r} is neither a step nor a range of steps like 2-5", param, ctx)
        return int(found[1]), int(found[2] or found[1])


@click.command()
@click.argument("file", type=Location(dir_okay=False))
@click.option("--png", type=Location(dir_okay=False), metavar="OUT", help="Draw the timeline of every node.")
@click.option("--from", "from_s", type=Number(min=0), help="Seconds since the start of the trace.")
@click.option("--to", "to_s", type=Number(min=0), help="Seconds since the start of the trace.")
@click.option("--steps", type=_Steps(), help="Only these: 1 is the prompt, each later one a token.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def trace(
    file: Path,
    png: Path | None,
    from_s: float | None,
    to_s: float | None,
    steps: tuple[int, int] | None,
    as_json: bool,
) -> None:
    """Show what the nodes did when, from a FILE that `tpiedge run --trace FILE` wrote.

    Of every node: how long it computed, took part in collectives, read weights and waited for them, and how much of
    the reading was hidden. With --png as a picture of it.
    """
    if steps and (from_s is not None or to_s is not None):
        raise UserError("give either --steps or --from and --to, not both")
    target = _target(png, file) if png else None
    found = read_trace(file, available_memory_bytes())
    window = _of_steps(found, *steps) if steps else _of_times(found, from_s, to_s)
    if target:
        _draw(found, window, target)
    if as_json:
        click.echo(json.dumps(_record(found, window, summarize(found, *window))))
    elif not target:
        _print(found, window, summarize(found, *window))


def _target(png: Path, file: Path) -> Path:
    """Where the picture goes. Raises UserError, DiskFull as `writable`."""
    target = writable(png)
    if target == Path(os.path.realpath(file)):
        raise UserError(f"--png {png} is the trace itself: give the picture another name")
    return target


def _of_times(found: Trace, from_s: float | None, to_s: float | None) -> Interval:
    start_s, end_s = from_s or 0.0, found.end_s if to_s is None else min(to_s, found.end_s)
    if start_s >= end_s:
        asked = f"--from {start_s:g}" + ("" if to_s is None else f" --to {to_s:g}")
        raise UserError(f"{asked} leaves nothing: the trace goes from 0 to {found.end_s:.3f} s")
    return start_s, end_s


def _of_steps(found: Trace, first: int, last: int) -> Interval:
    known = found.steps
    asked = [span for step, span in known.items() if first <= step <= last]
    if not asked:
        there = f"steps {min(known)} to {max(known)}" if known else "no steps"
        raise UserError(f"--steps {first}-{last} leaves nothing: the trace has {there}")
    return min(start for start, _ in asked), max(end for _, end in asked)


def _draw(found: Trace, window: Interval, target: Path) -> None:
    try:
        from tpiedge.plots.timeline import draw
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        raise UserError("--png needs matplotlib: pip install 'tpiedge[plot]'") from None
    draw(found, window, target)


def _record(found: Trace, window: Interval, nodes: Sequence[NodeSummary]) -> dict[str, object]:
    return {
        "from_s": window[0],
        "to_s": window[1],
        "steps": sorted(found.steps),
        "nodes": [
            {
                "rank": node.rank,
                "events": node.events,
                "dropped": node.dropped,
                **{f"{lane}_s": busy_s for lane, busy_s in node.busy_s.items()},
                **{f"load_during_{lane}_s": both_s for lane, both_s in node.load_during_s.items()},
                "read_bytes": node.read_bytes,
                "io_hidden_percent": node.hidden_percent,
                "travel_during_compute_s": node.travel_during_compute_s,
                "travel_hidden_percent": node.travel_hidden_percent,
            }
            for node in nodes
        ],
    }


def _print(found: Trace, window: Interval, nodes: Sequence[NodeSummary]) -> None:
    spent_s = window[1] - window[0]
    steps = [step for step, (start, end) in found.steps.items() if start < window[1] and end > window[0]]
    click.echo(f"{format_seconds(spent_s)} from {window[0]:.3f} s on, {len(steps)} steps\n")
    rows = [
        [
            str(node.rank),
            *(
                f"{format_seconds(node.busy_s[lane])} ({100 * node.busy_s[lane] / spent_s:.0f} %)"
                for lane in LANES
            ),
            format_bytes(node.read_bytes),
            *(
                "-" if percent is None else f"{percent:.0f} %"
                for percent in (node.hidden_percent, node.travel_hidden_percent)
            ),
        ]
        for node in nodes
    ]
    print_table(["node", *LANES, "read", "I/O hidden", "travel hidden"], rows)
    for node in nodes:
        if node.dropped:
            click.echo(f"\n{node.dropped} later events of node {node.rank} had no room in the trace")
