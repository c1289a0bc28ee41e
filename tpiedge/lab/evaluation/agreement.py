"""What a precision changes, position by position of a given text."""

import os
from contextlib import ExitStack
from dataclasses import replace

from tpiedge.host.device import available_memory_bytes, default_memory_bytes
from tpiedge.host.usage import rss_bytes
from tpiedge.lab.evaluation.comparison import Comparison, same_positions
from tpiedge.lab.evaluation.engine import WindowRows, open_engine
from tpiedge.lab.evaluation.text import EvalText, Window
from tpiedge.local.launch import Layout
from tpiedge.local.prepare import PreparedModel
from tpiedge.progress import ByteProgress


def compare(model: PreparedModel, other: PreparedModel, layout: Layout, text: EvalText) -> Comparison:
    """Computes both models over all windows of `text`, position by position; `other` is the reference.

    Both are in this process at once, so that neither's logits are kept. Raises what `open_engine` raises.
    """
    each = replace(layout, memory_bytes=layout.memory_bytes or _half_of_free_memory())
    found = Comparison()
    progress = ByteProgress("comparing")
    with ExitStack() as engines:
        opened = [engines.enter_context(open_engine(one, each, text.longest)) for one in (other, model)]
        try:
            for window in text.windows:
                compare_window(opened, window, found)
                progress(text.scored_bytes * found.positions // text.scored, text.scored_bytes)
        finally:
            progress.finish(text.scored_bytes * found.positions // text.scored)
    return found


def compare_window(engines: list[WindowRows], window: Window, found: Comparison) -> None:
    """Adds a window of (reference, model) to `found`.

    Position t foretells token t + 1; the last one foretells nothing that is known.
    """
    row = 0
    for reference_RV, model_RV in same_positions(*(engine.logits(window.ids) for engine in engines)):
        first = max(0, window.first - 1 - row)
        last = min(len(reference_RV), len(window.ids) - 1 - row)
        if first < last:
            following = window.ids[row + first + 1 : row + last + 1]
            found.add(reference_RV[first:last], model_RV[first:last], following)
        row += len(reference_RV)


def _half_of_free_memory() -> int:
    return default_memory_bytes(available_memory_bytes() + rss_bytes(os.getpid())) // 2
