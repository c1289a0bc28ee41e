"""How long every step of a trace took, as a strip of bars of which some are marked."""

from collections.abc import Iterable, Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from tpiedge.tracing.chrome import Trace
from tpiedge.tracing.excerpt import decode_steps
from tpiedge.units import format_seconds

_BAR = "#b0b7c3"
_MARKED = "#1f2937"
_BEHIND = "#fff3c4"
_LEAST_MARK = 0.004  # of the width
_LETTER = 0.0042  # of the width: what a letter of a label takes
_MOST = 3.0  # medians: longer bars are cut, or the prompt's would leave no height for the others
_BAR_WIDTH = 0.8  # of the place of a step
_MOST_BAR, _LEAST_BAR = 0.03, 0.0005  # of the width: a bar is not a wall, nor narrower than a pixel


def draw_strip(axes: Axes, trace: Trace, marked: Sequence[int]) -> None:
    """Draws a bar for every step of the trace, of which there must be one. `marked` ones are dark."""
    spent_s = {step: end - start for step, (start, end) in sorted(trace.steps.items())}
    usual_s = median(spent_s[step] for step in decode_steps(trace))
    top_s = min(1.1 * max(spent_s.values()), _MOST * usual_s)
    unit, per_s = ("ms", 1e3) if top_s < 1 else ("s", 1.0)
    first, last = min(spent_s) - 0.5, max(spent_s) + 0.5
    axes.set_xlim(first, last)
    axes.set_ylim(0, top_s * per_s)
    width = max(min(_BAR_WIDTH, _MOST_BAR * (last - first)), _LEAST_BAR * (last - first))
    for steps, colour in ((spent_s.keys() - set(marked), _BAR), (marked, _MARKED)):
        bars = [_bar(step, min(spent_s[step], top_s) * per_s, width) for step in steps]
        axes.add_collection(PolyCollection(bars, facecolors=colour, linewidth=0), autolim=False)
    if marked:
        _underlay(axes, marked[0] - width / 2, marked[-1] + width / 2)
    axes.axhline(usual_s * per_s, color="black", linewidth=0.8, linestyle="--", alpha=0.6)
    _name_cut(axes, ((step, spent) for step, spent in spent_s.items() if spent > top_s))
    _frame(axes, unit, "time of the step" if len(spent_s) == 1 else f"time of each of {len(spent_s)} steps")
    _explain(axes, marked, len(spent_s), usual_s)


def _bar(step: int, height: float, width: float) -> list[tuple[float, float]]:
    left, right = step - width / 2, step + width / 2
    return [(left, 0.0), (left, height), (right, height), (right, 0.0)]


def _underlay(axes: Axes, first: float, last: float) -> None:
    """Colours the place of the marked bars, which may be narrower than a pixel."""
    left, right = axes.get_xlim()
    missing = max(0.0, _LEAST_MARK * (right - left) - (last - first)) / 2
    axes.axvspan(first - missing, last + missing, color=_BEHIND, linewidth=0, zorder=0)


def _name_cut(axes: Axes, cut: Iterable[tuple[int, float]]) -> None:
    """Writes above the bars that are cut how long the steps took, where there is room."""
    left, right = axes.get_xlim()
    letter, free_from = _LETTER * (right - left), left
    for step, spent_s in cut:
        label = format_seconds(spent_s)
        start = max(left, min(step - len(label) * letter / 2, right - len(label) * letter))
        if start >= free_from:
            axes.text(start, 1.02, label, transform=axes.get_xaxis_transform(), fontsize=7, va="bottom")
            free_from = start + (len(label) + 2) * letter


def _frame(axes: Axes, unit: str, title: str) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3))
    axes.ticklabel_format(axis="x", useOffset=False, style="plain")
    axes.tick_params(labelsize=8)
    axes.set_xlabel("step", fontsize=9, labelpad=2)
    axes.set_ylabel(unit, fontsize=9)
    axes.set_title(title, loc="left", pad=18, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def _explain(axes: Axes, marked: Sequence[int], count: int, usual_s: float) -> None:
    handles: list[Patch | Line2D] = []
    if marked:
        drawn = f"{marked[0]}" if len(marked) == 1 else f"{marked[0]} to {marked[-1]}"
        handles.append(
            Patch(facecolor=_MARKED, edgecolor=_BEHIND, linewidth=3, label=f"drawn below: {drawn}")
        )
    if len(marked) < count:
        handles.append(Patch(color=_BAR, label="other steps"))
    usual = f"median {format_seconds(usual_s)}"
    handles.append(Line2D([], [], color="black", linewidth=0.8, linestyle="--", alpha=0.6, label=usual))
    axes.legend(
        handles=handles,
        ncols=len(handles),
        loc="lower right",
        bbox_to_anchor=(1.0, 1.2),
        frameon=False,
        fontsize=8,
        borderpad=0,
        borderaxespad=0,
    )
