"""The roofline of `tpiedge bench kernels`, as a PNG file. Needs matplotlib, but no display."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tpiedge.errors import UserError
from tpiedge.lab.plots.timeline import save
from tpiedge.units import counted

_DPI = 150
_PANEL_INCHES = (7.0, 5.0)
_COLOURS = {"f32": "#4c78a8", "bf16": "#59a14f", "q8": "#f2a33a", "q4": "#e15759"}
_MARKS = {"project": "o", "contract": "s", "ffn": "D", "attention": "^"}
_PEAKS = {"int8": "--", "f32": "-"}

Result = Mapping[str, Any]


def draw(record: Result, path: Path) -> None:
    """A panel for each number of threads: operations per second over operations per byte.

    Raises UserError where nothing was compared with memory, DiskFull.
    """
    bounded = [found for found in record["results"] if found["of_roofline"] is not None]
    if not bounded:
        raise UserError(
            "--png: nothing to draw: it takes the native kernels, and project, contract, ffn or attention"
        )
    counts = sorted({found["threads"] for found in bounded})
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * len(counts), height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    for place, threads in enumerate(counts):
        axes = figure.add_subplot(1, len(counts), place + 1)
        _panel(axes, threads, [found for found in bounded if found["threads"] == threads])
    figure.legend(handles=_legend(bounded), ncols=8, loc="outside upper center", frameon=False, fontsize=8)
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
            color=_COLOURS[found["precision"]],
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
    """Memory's slope up to the peak."""
    ridge = min(max(peak / read, ends[0]), ends[1])
    xs = [ends[0], ridge, ends[1]]
    axes.plot(xs, [min(peak, x * read) / 1e9 for x in xs], style, color="black", linewidth=1)
    axes.text(ends[1], peak / 1e9, f"{kind} peak {peak / 1e9:.0f} ", ha="right", va="bottom", fontsize=8)


def _intensity(found: Result) -> float:
    return float(found["operations"] / found["bytes"])


def _median_of(results: Sequence[Result], name: str) -> float:
    medians = sorted(found[name]["median"] for found in results)
    return float(medians[len(medians) // 2])


def _legend(results: Sequence[Result]) -> list[Line2D]:
    precisions = [name for name in _COLOURS if any(found["precision"] == name for found in results)]
    kernels = [name for name in _MARKS if any(found["kernel"] == name for found in results)]
    lines = [
        Line2D([], [], color=_COLOURS[name], marker="o", linestyle="", label=name) for name in precisions
    ]
    lines += [Line2D([], [], color="grey", marker=_MARKS[name], linestyle="", label=name) for name in kernels]
    if not all(found["native"] for found in results):
        hollow = Line2D([], [], color="grey", marker="o", fillstyle="none", linestyle="", label="by torch")
        lines.append(hollow)
    return lines
