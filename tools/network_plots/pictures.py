"""The figures of all-reduces and of decoding, as PNG files. Needs matplotlib, but no display."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter, NullLocator

from tpiedge.lab.plots import save
from tpiedge.units import format_bytes

from .records import AllReduce, Decode, Spread
from .sweeps import AXES, latencies, series_along

_DPI = 150
_PANEL_INCHES = (5.2, 3.9)
_LEGEND_INCHES = 0.5
_COLUMNS = 3
_TITLE_COLUMNS = 60
_LEGEND_COLUMNS = 4  # per column of panels

_COLOURS = {"star": "#4c78a8", "mesh": "#59a14f", "two-shot": "#f2a33a"}
_MEASURED = Line2D([], [], color="grey", marker="o", label="measured")
_MODEL = Line2D([], [], color="grey", marker="o", markersize=9, fillstyle="none", linestyle="", label="model")
_BOUND = Line2D([], [], color="grey", linestyle="--", label="latencies alone")


def draw_allreduces(reduces: Sequence[AllReduce], folder: Path) -> list[Path]:
    """Draws figures; that of latencies only if some link has one. Raises UserError, DiskFull."""
    if not reduces:
        return []
    drawn = [_save(_of_payloads(reduces), folder / "allreduce-payload.png")]
    if any(one.latency_s for one in reduces):
        drawn.append(_save(_of_latencies(reduces), folder / "allreduce-latency.png"))
    return drawn


def draw_decodes(decodes: Sequence[Decode], folder: Path) -> list[Path]:
    """The figure, if some settings differ in one thing alone. Raises UserError, DiskFull."""
    swept = [(axis, *found) for axis in AXES if (found := series_along(axis, decodes))[1]]
    if not swept:
        return []
    figure, panels = _figure(len(swept), ())
    for axes, (axis, shared, series) in zip(panels, swept, strict=True):
        for name, group in series.items():
            xs = [axis.value(one) or 0.0 for one in group]
            _measured(axes, xs, [one.s_per_token for one in group], 1.0, None, _plain(name))
        places = sorted({axis.value(one) or 0.0 for group in series.values() for one in group})
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.set_title(fill(_plain(shared), _TITLE_COLUMNS), fontsize=8)
        axes.set_xlabel(axis.label)
        axes.set_ylabel("s/token")
        axes.set_ylim(bottom=0)
        if len(series) > 1:
            axes.legend(fontsize=7)
    return [_save(figure, folder / "decode.png")]


def _of_latencies(reduces: Sequence[AllReduce]) -> Figure:
    """A panel for each number of nodes; of the smallest payload."""
    least = min(one.nbytes for one in reduces)
    small = [one for one in reduces if one.nbytes == least]
    counts = sorted({one.nodes for one in small})
    figure, panels = _figure(len(counts), [*_legend(small), _MEASURED, _MODEL, _BOUND])
    for axes, nodes in zip(panels, counts, strict=True):
        there = [one for one in small if one.nodes == nodes]
        longest_ms = 1e3 * max(one.latency_s for one in there)
        for collective, group in _by_collective(there):
            _compare(axes, collective, {1e3 * one.latency_s: one for one in group})
            bound_ms = latencies(collective) * longest_ms
            axes.plot([0, longest_ms], [0, bound_ms], "--", color=_COLOURS[collective], linewidth=1)
        axes.set_title(f"{nodes} nodes, {format_bytes(least)}")
        axes.set_xlabel("one-way latency between nodes (ms)")
        axes.set_ylabel("all-reduce (ms)")
        axes.set_ylim(bottom=0)
    return figure


def _of_payloads(reduces: Sequence[AllReduce]) -> Figure:
    """A panel for each network and number of nodes."""
    keys = sorted({(one.network, one.nodes) for one in reduces})
    figure, panels = _figure(len(keys), [*_legend(reduces), _MEASURED, _MODEL])
    for axes, key in zip(panels, keys, strict=True):
        there = [one for one in reduces if (one.network, one.nodes) == key]
        for collective, group in _by_collective(there):
            _compare(axes, collective, {one.nbytes: one for one in group})
        axes.set_xscale("log")
        axes.set_yscale("log")
        payloads = sorted({one.nbytes for one in there})
        axes.set_xticks(payloads, [format_bytes(nbytes) for nbytes in payloads], rotation=30, fontsize=7)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
        axes.set_title(_plain(f"{key[0]}: {key[1]} nodes"), fontsize=9)
        axes.set_xlabel("payload of a node")
        axes.set_ylabel("all-reduce (ms)")
    return figure


def _by_collective(reduces: Iterable[AllReduce]) -> list[tuple[str, list[AllReduce]]]:
    found: defaultdict[str, list[AllReduce]] = defaultdict(list)
    for one in reduces:
        found[one.collective].append(one)
    return [(collective, found[collective]) for collective in _COLOURS if collective in found]


def _compare(axes: Axes, collective: str, placed: Mapping[float, AllReduce]) -> None:
    """Measurements and, hollow, predictions. Of several at one place the last is shown."""
    colour = _COLOURS[collective]
    rows = sorted(placed.items())
    _measured(axes, [x for x, _ in rows], [one.seconds for _, one in rows], 1e3, colour, collective)
    known = [(x, 1e3 * one.predicted_s) for x, one in rows if one.predicted_s is not None]
    for x, predicted_ms in known:
        axes.plot(x, predicted_ms, "o", color=colour, markersize=9, fillstyle="none")


def _measured(
    axes: Axes, xs: Sequence[float], spreads: Sequence[Spread], scale: float, colour: str | None, label: str
) -> None:
    medians = [scale * one.median for one in spreads]
    below = [scale * (one.median - one.least) for one in spreads]
    above = [scale * (one.most - one.median) for one in spreads]
    axes.errorbar(
        xs, medians, yerr=[below, above], marker="o", markersize=4, capsize=3, color=colour, label=label
    )


def _legend(reduces: Iterable[AllReduce]) -> list[Line2D]:
    return [Line2D([], [], color=_COLOURS[name], label=name) for name, _ in _by_collective(reduces)]


def _figure(panels: int, legend: Sequence[Line2D]) -> tuple[Figure, list[Axes]]:
    """Panels side by side, below each other where there are many; the legend above."""
    columns = 2 if panels == 4 else min(panels, _COLUMNS)
    rows = -(-panels // columns)
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(columns * width, rows * height + _LEGEND_INCHES), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    if legend:
        figure.legend(
            handles=list(legend),
            ncols=min(len(legend), columns * _LEGEND_COLUMNS),
            loc="outside upper center",
            frameon=False,
            fontsize=8,
        )
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(panels)]
    for one in axes:
        one.grid(alpha=0.3)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _plain(text: str) -> str:
    """No mathematics: names come from a file."""
    return text.replace("$", r"\$")


def _save(figure: Figure, path: Path) -> Path:
    save(figure, path)
    return path
