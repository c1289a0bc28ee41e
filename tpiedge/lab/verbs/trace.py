"""The command `tpiedge trace`."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import click

from tpiedge.cli.listing import json_option, print_table
from tpiedge.cli.options import Location, Parsed
from tpiedge.errors import UserError
from tpiedge.host.device import available_memory_bytes
from tpiedge.lab.traces import (
    Excerpt,
    NodeSummary,
    StepRange,
    Trace,
    excerpt_of_steps,
    parse_steps,
    read_trace,
    summarize,
    typical_excerpt,
)
from tpiedge.lab.verbs.flags import plots
from tpiedge.tracing.collection import writable
from tpiedge.tracing.tracer import LANES
from tpiedge.units import counted, format_bytes, format_seconds


@click.command()
@click.argument("file", type=Location(dir_okay=False))
@click.option(
    "--png",
    type=Location(dir_okay=False),
    metavar="OUT",
    help="Draw every node's timeline of three typical steps, or of --steps.",
)
@click.option(
    "--steps",
    type=Parsed("N|N:M|N:|:M", parse_steps),
    help="Steps: 40:44 is five steps, 40: is all from 40 on, : is all. The first step is the prompt.",
)
@json_option
def trace(file: Path, png: Path | None, steps: StepRange | None, as_json: bool) -> None:
    """Show what each node did during a run of `tpiedge run --trace FILE`.

    Prints how long each node computed, took part in all-reduces, read weights and waited for weights. I/O hidden is the
    percentage of the reading time in which the node did not wait for weights. --png draws the time of every step.
    Below, it draws three successive decode steps of about the median time. --steps chooses the steps to print and draw.
    """
    target = _target(png, file) if png else None
    found = read_trace(file, available_memory_bytes())
    whole = Excerpt(0.0, found.end_s, tuple(sorted(found.steps)))
    part = _of_steps(found, steps, file) if steps else whole
    drawn = (part if steps else typical_excerpt(found)) if target else None
    if target and drawn:
        plots().draw_timeline(found, drawn, target)
    if as_json:
        click.echo(json.dumps(_record(part, drawn, summarize(found, *part.window))))
    elif target:
        click.echo(f"drew {target}", err=True)
    else:
        _print(part, summarize(found, *part.window))


def _target(png: Path, file: Path) -> Path:
    target = writable(png)
    if target == Path(os.path.realpath(file)):
        raise UserError(f"--png {png} is the trace itself: give the picture another name")
    return target


def _of_steps(found: Trace, wanted: StepRange, file: Path) -> Excerpt:
    known = sorted(found.steps)
    if not known:
        raise UserError(f"--steps {wanted}: {file} has no steps")
    if not (steps := wanted.of(known)):
        there, example = StepRange(known[0], known[-1]), StepRange(known[-3:][0], known[-1])
        raise UserError(
            f"--steps {wanted}: {file} has steps {there}: stay within them, as in --steps {example}"
        )
    return excerpt_of_steps(found, steps)


def _record(part: Excerpt, drawn: Excerpt | None, nodes: Sequence[NodeSummary]) -> dict[str, object]:
    return {
        "from_s": part.start_s,
        "to_s": part.end_s,
        "steps": part.steps,
        **({"drawn_steps": drawn.steps} if drawn else {}),
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


def _print(part: Excerpt, nodes: Sequence[NodeSummary]) -> None:
    spent_s = part.end_s - part.start_s
    click.echo(f"{format_seconds(spent_s)} from {part.start_s:.3f} s on, {_counted(part.steps)}\n")
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
            lost = counted(node.dropped, "later event")
            click.echo(f"\n{lost} of node {node.rank} had no room in the trace")


def _counted(steps: Sequence[int]) -> str:
    if not steps:
        return "no steps"
    return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps ({steps[0]}:{steps[-1]})"
