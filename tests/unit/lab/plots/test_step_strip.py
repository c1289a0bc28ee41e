from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from tpiedge.lab.traces import Trace
from tpiedge.tracing.tracer import TraceEvent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def strip_of(spent_s: Sequence[float], marked: Sequence[int]) -> "tuple[Figure, Axes]":
    """The strip of steps 1, 2, ... that took so long, in the place that a timeline gives it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import: not in every collection
    from matplotlib.figure import Figure

    from tpiedge.lab.plots import draw_strip

    events: list[TraceEvent] = []
    start_s = 0.0
    for step, seconds in enumerate(spent_s, 1):
        events.append(TraceEvent("compute", "head", start_s, start_s + seconds, step=step))
        start_s += seconds
    figure = Figure(figsize=(16, 2), dpi=150)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.08, 0.3, 0.87, 0.4))
    draw_strip(axes, Trace({0: tuple(events)}, {}), marked)
    return figure, axes


@pytest.fixture(scope="module", autouse=True)
def fonts() -> None:
    """matplotlib opens the files of its fonts with the first text that it draws, and keeps them open."""
    pytest.importorskip("matplotlib", reason="software: no matplotlib")
    figure, _ = strip_of([0.01], marked=(1,))
    figure.canvas.draw()


def heights(axes: "Axes") -> list[dict[int, float]]:
    from matplotlib.collections import PolyCollection

    found = [bars for bars in axes.collections if isinstance(bars, PolyCollection)]
    return [
        {round(path.vertices[:, 0].mean()): float(path.vertices[:, 1].max()) for path in bars.get_paths()}
        for bars in found
    ]


def test_prefill_bar_is_clipped_and_labelled() -> None:
    _, axes = strip_of([0.5, *[0.01] * 9], marked=(2, 3, 4))
    assert axes.get_ylim() == (0, pytest.approx(30))
    assert heights(axes)[0][1] == pytest.approx(30)
    assert [text.get_text() for text in axes.texts] == ["500 ms"]


def legend(axes: "Axes") -> list[str]:
    found = axes.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def test_legend_names_marked_steps_and_the_decode_median() -> None:
    assert legend(strip_of([0.5, 0.01, 0.02, 0.03, 0.04], marked=(3, 4))[1]) == [
        "drawn below: 3 to 4", "other steps", "median 25 ms",
    ]  # fmt: skip
    assert legend(strip_of([0.02], marked=(1,))[1]) == ["drawn below: 1", "median 20 ms"]
    assert legend(strip_of([0.02], marked=())[1]) == ["other steps", "median 20 ms"]
