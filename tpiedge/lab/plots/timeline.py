"""The timeline of a part of a trace as a picture, as in figure 4 of TPI-LLM, below the times of all steps."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tpiedge.lab.plots.step_strip import draw_strip
from tpiedge.tracing.chrome import Trace
from tpiedge.tracing.collection import cannot_write
from tpiedge.tracing.excerpt import Excerpt
from tpiedge.tracing.intervals import Interval, clip, rows, total, union
from tpiedge.tracing.tracer import LANES, TraceEvent
from tpiedge.units import format_seconds

_DPI = 150
_WIDTH_INCHES = 16.0
_LANE_INCHES = 0.4
_TOP_INCHES = 0.7
_BOTTOM_INCHES = 0.6
_STRIP_INCHES = 0.9
_ABOVE_STRIP_INCHES = 0.55
_BELOW_STRIP_INCHES = 0.45
_SIDES = (0.08, 0.95)  # of the width: where the lanes begin and end
_BAR = 0.84  # of a lane's height
_GAP = 0.5  # between two nodes, in lanes
_LINE_BARS = 8  # pixels: wider bars are told from their neighbours by a white edge
_LETTER = 0.0042  # of the width of the lanes: what a letter of a label takes
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
}


def draw(trace: Trace, part: Excerpt, path: Path) -> None:
    """Writes a PNG: the time of every step, and the lanes of every node in the part. Raises UserError, DiskFull."""
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
    """Axes as wide as the lanes."""
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
    """Things that go on at once share the lane's height."""
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
            parse_math=False,  # it may be anybody's file
        )


def _look(placed: tuple[TraceEvent, int]) -> tuple[int, str]:
    """(row, colour)."""
    event, row = placed
    if event.lane != "compute":
        return row, _COLOURS[event.lane]
    return row, _COLOURS.get(event.name, _COLOURS["head, embedding"])


def _draw_bars(
    axes: Axes, spans: Iterable[Interval], bottom: float, height: float, colour: str, window: Interval
) -> None:
    """What is narrower than some pixels is drawn as one with its neighbours: a trace has many thousands of them."""
    pixel_s = (window[1] - window[0]) / (_WIDTH_INCHES * _DPI)
    wide: list[Interval] = []
    narrow: list[Interval] = []
    for start, end in spans:
        (wide if end - start > _LINE_BARS * pixel_s else narrow).append((start, end))
    thin = [(start, max(end - start, pixel_s)) for start, end in union(narrow, pixel_s / 2)]
    axes.broken_barh(thin, (bottom, height), facecolors=colour, linewidth=0)
    broad = [(start, end - start) for start, end in wide]
    axes.broken_barh(broad, (bottom, height), facecolors=colour, edgecolors="white", linewidth=0.5)


def _wide(placed: Sequence[tuple[TraceEvent, int]], window: Interval) -> Iterator[tuple[TraceEvent, int]]:
    """Those with room for their label."""
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
    """A line where each step begins, if there are not too many to tell apart, named where there is room."""
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
    """Saves the figure as a PNG, in place of what was there, whole or not at all. Raises UserError, DiskFull."""
    # Not named after the file, whose name may be as long as can be.
    unfinished = path.with_name(f".tpiedge-{os.getpid()}.partial")
    try:
        try:
            figure.savefig(unfinished, format="png")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None
