"""Draws a trace's timeline and the kernels' roofline as PNG files. Needs matplotlib."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from tpiedge.errors import UserError, cannot_write
from tpiedge.lab.traces import Excerpt, Trace, decode_steps, total
from tpiedge.tracing.collection import rows
from tpiedge.tracing.tracer import LANES, Interval, TraceEvent, clip, union
from tpiedge.units import counted, format_seconds

_STRIP_BAR, _MARKED, _BEHIND = "#b0b7c3", "#1f2937", "#fff3c4"


def draw_strip(axes: Axes, trace: Trace, marked: Sequence[int]) -> None:
    """Draws a bar for every step's time. Bars of `marked` steps are dark."""
    spent_s = {step: end - start for step, (start, end) in sorted(trace.steps.items())}
    usual_s = median(spent_s[step] for step in decode_steps(trace))
    # Longer bars are cut, or the prompt's would leave no height for the others.
    top_s = min(1.1 * max(spent_s.values()), 3.0 * usual_s)
    unit, per_s = ("ms", 1e3) if top_s < 1 else ("s", 1.0)
    first, last = min(spent_s) - 0.5, max(spent_s) + 0.5
    axes.set_xlim(first, last)
    axes.set_ylim(0, top_s * per_s)
    width = max(min(0.8, 0.03 * (last - first)), 0.0005 * (last - first))  # neither walls nor below a pixel
    for steps, colour in ((sorted(spent_s.keys() - set(marked)), _STRIP_BAR), (marked, _MARKED)):
        bars = [_bar(step, width, min(spent_s[step], top_s) * per_s) for step in steps]
        # As one collection: a trace may have many thousands of steps.
        axes.add_collection(PolyCollection(bars, facecolors=colour, linewidth=0), autolim=False)
    if marked:  # their place may be narrower than a pixel
        missing = max(0.0, 0.004 * (last - first) - (marked[-1] - marked[0] + width)) / 2
        axes.axvspan(
            marked[0] - width / 2 - missing, marked[-1] + width / 2 + missing, color=_BEHIND, zorder=0
        )
    axes.axhline(usual_s * per_s, color="black", linewidth=0.8, linestyle="--", alpha=0.6)
    _name_cut(axes, ((step, spent) for step, spent in spent_s.items() if spent > top_s))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3))
    axes.ticklabel_format(axis="x", useOffset=False, style="plain")
    axes.tick_params(labelsize=8)
    axes.set_xlabel("step", fontsize=9, labelpad=2)
    axes.set_ylabel(unit, fontsize=9)
    title = "time of the step" if len(spent_s) == 1 else f"time of each of {len(spent_s)} steps"
    axes.set_title(title, loc="left", pad=18, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    _explain(axes, marked, len(spent_s), usual_s)


def _bar(step: int, width: float, height: float) -> list[tuple[float, float]]:
    left, right = step - width / 2, step + width / 2
    return [(left, 0.0), (left, height), (right, height), (right, 0.0)]


def _name_cut(axes: Axes, cut: Iterable[tuple[int, float]]) -> None:
    left, right = axes.get_xlim()
    letter, free_from = _LETTER * (right - left), left
    for step, spent_s in cut:
        label = format_seconds(spent_s)
        start = max(left, min(step - len(label) * letter / 2, right - len(label) * letter))
        if start >= free_from:
            axes.text(start, 1.02, label, transform=axes.get_xaxis_transform(), fontsize=7, va="bottom")
            free_from = start + (len(label) + 2) * letter


def _explain(axes: Axes, marked: Sequence[int], count: int, usual_s: float) -> None:
    handles: list[Patch | Line2D] = []
    if marked:
        drawn = f"{marked[0]}" if len(marked) == 1 else f"{marked[0]} to {marked[-1]}"
        handles.append(
            Patch(facecolor=_MARKED, edgecolor=_BEHIND, linewidth=3, label=f"drawn below: {drawn}")
        )
    if len(marked) < count:
        handles.append(Patch(color=_STRIP_BAR, label="other steps"))
    usual = f"median {format_seconds(usual_s)}"
    handles.append(Line2D([], [], color="black", linewidth=0.8, linestyle="--", alpha=0.6, label=usual))
    axes.legend(
        handles=handles, ncols=len(handles), loc="lower right", bbox_to_anchor=(1.0, 1.2), frameon=False, fontsize=8,
        borderpad=0, borderaxespad=0,
    )  # fmt: skip


_DPI = 150
_WIDTH_INCHES = 16.0
_LANE_INCHES = 0.4
_TOP_INCHES = 0.7
_BOTTOM_INCHES = 0.6
_STRIP_INCHES, _ABOVE_STRIP_INCHES, _BELOW_STRIP_INCHES = 0.9, 0.55, 0.45
_SIDES = (0.08, 0.95)  # of the width: where the lanes begin and end
_BAR = 0.84  # of a lane's height
_GAP = 0.5  # between two nodes, in lanes
_LINE_BARS = 8  # pixels; wider bars get a white edge
_LETTER = 0.0042  # width of a label's letter, of the lanes' width
_LABELS = 600
_STEPS = 60

_COLOURS = {
    "attention": "#4c78a8",
    "ffn": "#f2a33a",
    "head, embedding": "#76b7b2",
    "reduce": "#59a14f",
    "load": "#9d8ec7",
    "wait": "#e15759",
    "travel": "#b0b7c3",
    "bring": "#b279a2",
    "leave": "#9c755f",
}


def draw_timeline(trace: Trace, part: Excerpt, path: Path) -> None:
    """Writes a PNG with the times of all steps, and the lanes during `part`. Raises UserError, DiskFull."""
    lanes = len(LANES) * len(trace.nodes) + _GAP * (len(trace.nodes) - 1)
    strip_bottom = _BOTTOM_INCHES + _LANE_INCHES * lanes + _TOP_INCHES + _BELOW_STRIP_INCHES
    top = (
        strip_bottom + _STRIP_INCHES + _ABOVE_STRIP_INCHES
        if trace.steps
        else strip_bottom - _BELOW_STRIP_INCHES
    )
    figure = Figure(figsize=(_WIDTH_INCHES, top), dpi=_DPI)
    FigureCanvasAgg(figure)
    if trace.steps:
        draw_strip(_add_axes(figure, strip_bottom, _STRIP_INCHES), trace, part.steps)
    axes = _add_axes(figure, _BOTTOM_INCHES, _LANE_INCHES * lanes)
    for place, (rank, events) in enumerate(trace.nodes.items()):
        _draw_node(axes, rank, events, place * (len(LANES) + _GAP), part.window)
    _frame(axes, len(trace.nodes), lanes, part.window)
    _mark_steps(axes, trace, part)
    save(figure, path)


def _add_axes(figure: Figure, bottom_inches: float, height_inches: float) -> Axes:
    (left, right), top = _SIDES, figure.get_figheight()
    return figure.add_axes((left, bottom_inches / top, right - left, height_inches / top))


def _draw_node(axes: Axes, rank: int, events: Sequence[TraceEvent], top: float, window: Interval) -> None:
    side = axes.get_yaxis_transform()
    middle = top + len(LANES) / 2
    axes.text(
        -0.065, middle, f"node {rank}", transform=side, rotation=90, ha="center", va="center", weight="bold"
    )
    for number, lane in enumerate(LANES):
        inside = [event for event in events if event.lane == lane and list(clip([event.span], *window))]
        _draw_lane(axes, inside, top + number, window)
        busy_s = total(union(clip((event.span for event in inside), *window)))
        share = f"{100 * busy_s / (window[1] - window[0]):.0f} %"
        axes.text(1.006, top + number + 0.5, share, transform=side, va="center", fontsize=8)


def _draw_lane(axes: Axes, events: Sequence[TraceEvent], top: float, window: Interval) -> None:
    placed = list(zip(events, rows(event.span for event in events), strict=True))
    height = _BAR / (1 + max((row for _, row in placed), default=0))
    for (row, colour), found in groupby(sorted(placed, key=_look), key=_look):
        bottom = top + (1 - _BAR) / 2 + row * height
        _draw_bars(axes, clip((event.span for event, _ in found), *window), bottom, height, colour, window)
    for event, row in islice(_wide(placed, window), _LABELS):
        ((start, end),) = clip([event.span], *window)
        middle = top + (1 - _BAR) / 2 + (row + 0.5) * height
        size = 5.0 if height < _BAR else 7.0
        axes.text(
            (start + end) / 2,
            middle,
            _label(event),
            ha="center",
            va="center",
            fontsize=size,
            parse_math=False,  # the file may be foreign
        )


def _look(placed: tuple[TraceEvent, int]) -> tuple[int, str]:
    event, row = placed
    if event.lane != "compute":
        return row, _COLOURS[event.lane]
    return row, _COLOURS.get(event.name, _COLOURS["head, embedding"])


def _draw_bars(
    axes: Axes, spans: Iterable[Interval], bottom: float, height: float, colour: str, window: Interval
) -> None:
    pixel_s = (window[1] - window[0]) / (_WIDTH_INCHES * _DPI)
    wide: list[Interval] = []
    narrow: list[Interval] = []
    for start, end in spans:
        (wide if end - start > _LINE_BARS * pixel_s else narrow).append((start, end))
    # A trace has thousands of bars: those narrower than a few pixels are merged.
    thin = [(start, max(end - start, pixel_s)) for start, end in union(narrow, pixel_s / 2)]
    axes.broken_barh(thin, (bottom, height), facecolors=colour, linewidth=0)
    broad = [(start, end - start) for start, end in wide]
    axes.broken_barh(broad, (bottom, height), facecolors=colour, edgecolors="white", linewidth=0.5)


def _wide(placed: Sequence[tuple[TraceEvent, int]], window: Interval) -> Iterator[tuple[TraceEvent, int]]:
    for event, row in placed:
        if total(clip([event.span], *window)) > (len(_label(event)) + 1) * _LETTER * (window[1] - window[0]):
            yield event, row


def _label(event: TraceEvent) -> str:
    layer = f"L{event.layer}" if event.layer >= 0 else ""
    return (
        f"{event.name} {layer}".strip() if event.lane in ("load", "wait", "travel") else layer or event.name
    )


def _frame(axes: Axes, nodes: int, lanes: float, window: Interval) -> None:
    ticks = {
        node * (len(LANES) + _GAP) + number + 0.5: lane
        for node in range(nodes)
        for number, lane in enumerate(LANES)
    }
    axes.set_xlim(*window)
    axes.set_ylim(lanes, 0)
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.tick_params(axis="y", length=0)
    axes.ticklabel_format(axis="x", useOffset=False, style="plain")
    axes.set_xlabel("seconds since the start of the trace")
    for name in ("top", "right", "left"):
        axes.spines[name].set_visible(False)
    patches = [Patch(color=colour, label=label) for label, colour in _COLOURS.items()]
    above = 1 + 0.25 / (_LANE_INCHES * lanes)
    axes.legend(
        handles=patches, ncols=len(patches), loc="lower center", bbox_to_anchor=(0.5, above), frameon=False
    )


def _mark_steps(axes: Axes, trace: Trace, part: Excerpt) -> None:
    if len(part.steps) > _STEPS:
        return
    letter_s = _LETTER * (part.end_s - part.start_s)
    free_from = part.start_s
    for step in part.steps:
        start, end = trace.steps[step]
        if start >= part.start_s:
            axes.axvline(start, color="black", linewidth=0.5, alpha=0.4, zorder=0)
        if start < free_from:
            continue
        name = f"step {step}"
        timed = f"{name}, {format_seconds(end - start)}"
        label = timed if len(timed) * letter_s < end - start else name
        if start + len(label) * letter_s <= part.end_s:
            axes.text(start, -0.06, label, fontsize=7, ha="left", va="bottom")
            free_from = start + (len(label) + 1) * letter_s


def save(figure: Figure, path: Path) -> None:
    """Saves a PNG atomically. Raises UserError, DiskFull."""
    # The file's own name may already have the greatest length.
    unfinished = path.with_name(f".tpiedge-{os.getpid()}.partial")
    try:
        try:
            figure.savefig(unfinished, format="png")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None


_PANEL_INCHES = (7.0, 5.0)
_PRECISIONS = {"f32": "#4c78a8", "bf16": "#59a14f", "q8": "#f2a33a", "q4": "#e15759"}
_MARKS = {"project": "o", "contract": "s", "ffn": "D", "attention": "^"}
_PEAKS = {"int8": "--", "f32": "-"}

Result = Mapping[str, Any]


def draw_roofline(record: Result, path: Path) -> None:
    """Writes a PNG with a panel for each number of threads. Raises UserError, DiskFull."""
    bounded = [found for found in record["results"] if found["of_roofline"] is not None]
    if not bounded:
        raise UserError(
            "--png: nothing to draw: a roofline takes the native kernels, and project, contract, ffn or attention"
        )
    counts = sorted({found["threads"] for found in bounded})
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * len(counts), height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    for place, threads in enumerate(counts):
        axes = figure.add_subplot(1, len(counts), place + 1)
        _panel(axes, threads, [found for found in bounded if found["threads"] == threads])
    figure.legend(
        handles=_roofline_legend(bounded), ncols=8, loc="outside upper center", frameon=False, fontsize=8
    )
    save(figure, path)


def _panel(axes: Axes, threads: int, results: Sequence[Result]) -> None:
    least, most = (pick(map(_intensity, results)) for pick in (min, max))
    ends = (least / 2, most * 2)
    read = _median_of(results, "read_bytes_per_s")
    for kind, style in _PEAKS.items():
        own = [found for found in results if (found["precision"] in ("q8", "q4")) == (kind == "int8")]
        own = [found for found in own if found["kernel"] != "attention" or kind == "f32"]
        if own:
            _roof(axes, ends, read, _median_of(own, "peak_operations_per_s"), kind, style)
    for found in results:
        axes.plot(
            _intensity(found),
            found["operations_per_s"]["median"] / 1e9,
            _MARKS[found["kernel"]],
            color=_PRECISIONS[found["precision"]],
            markersize=4 + min(6, found["tokens"].bit_length() / 2),
            fillstyle="full" if found["native"] else "none",
            alpha=0.8,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_title(f"{counted(threads, 'thread')}: memory reads {read / 1e9:.1f} GB/s", fontsize=10)
    axes.set_xlabel("operations per byte moved")
    axes.set_ylabel("GOP/s")
    axes.grid(alpha=0.3, which="both")
    axes.spines[["top", "right"]].set_visible(False)


def _roof(axes: Axes, ends: tuple[float, float], read: float, peak: float, kind: str, style: str) -> None:
    ridge = min(max(peak / read, ends[0]), ends[1])
    xs = [ends[0], ridge, ends[1]]
    axes.plot(xs, [min(peak, x * read) / 1e9 for x in xs], style, color="black", linewidth=1)
    axes.text(ends[1], peak / 1e9, f"{kind} peak {peak / 1e9:.0f} ", ha="right", va="bottom", fontsize=8)


def _intensity(found: Result) -> float:
    return float(found["operations"] / found["bytes"])


def _median_of(results: Sequence[Result], name: str) -> float:
    medians = sorted(found[name]["median"] for found in results)
    return float(medians[len(medians) // 2])


def _roofline_legend(results: Sequence[Result]) -> list[Line2D]:
    precisions = [name for name in _PRECISIONS if any(found["precision"] == name for found in results)]
    kernels = [name for name in _MARKS if any(found["kernel"] == name for found in results)]
    lines = [
        Line2D([], [], color=_PRECISIONS[name], marker="o", linestyle="", label=name) for name in precisions
    ]
    lines += [Line2D([], [], color="grey", marker=_MARKS[name], linestyle="", label=name) for name in kernels]
    if not all(found["native"] for found in results):
        hollow = Line2D([], [], color="grey", marker="o", fillstyle="none", linestyle="", label="by torch")
        lines.append(hollow)
    return lines
