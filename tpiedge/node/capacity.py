"""Measures how many bytes of weights this process computes per second. A decode step reads every weight once.

The speed of bf16 is also used for f32. The speed of q4 is also used for q8. The lower quartile of the times counts,
because the machine may be busy.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from tpiedge.host.device import available_memory_bytes, usable_cores
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.panels import FORMATS, PANEL, PanelShape
from tpiedge.units import MIB
from tpiedge.wire.epochs import Capacity

_COLUMNS = 2048
_PANELS = FORMATS["q4"]
# More than the caches of weak machines' processors.
_BUFFER_BYTES = 96 * MIB


def measure(threads: int) -> Capacity:
    """Measures for about 0.3 s with at most 96 MiB of weights. Sets torch's number of threads."""
    torch.set_num_threads(threads)
    # Filled: memory that was never written is one page of zeros, read from the cache.
    nbytes = max(8 * MIB, min(_BUFFER_BYTES, available_memory_bytes() // 4))
    weights = torch.full((nbytes // (2 * _COLUMNS), _COLUMNS), 0.02, dtype=torch.bfloat16)
    # A CPU quota is used up in bursts: so short a measurement may not notice it.
    part = min(1.0, usable_cores() / threads)
    x_TI = torch.full((1, _COLUMNS), 0.5)
    with Linear.create(Arithmetic.INT8, threads) as linear:
        return Capacity(
            part * weights.nbytes / _usual_s(lambda: linear.project(x_TI, weights), 0.16),
            part * _panel_bytes_per_s(linear, x_TI, weights) if linear.pool else 0.0,
        )


def _panel_bytes_per_s(linear: Linear, x_TI: Tensor, weights: Tensor) -> float:
    part = weights.view(torch.uint8).flatten()
    panel = PanelShape(_PANELS, PANEL, _COLUMNS)
    panels = part.nbytes // panel.nbytes
    rows = panels * PANEL
    matrix = PanelMatrix(part, _PANELS, rows, _COLUMNS, rows, 0, transposed=False)
    return panels * panel.nbytes / _usual_s(lambda: linear.project(x_TI, matrix), 0.1)


def _usual_s(work: Callable[[], object], limit_s: float) -> float:
    """Calls `work` during `limit_s`. Returns the lower quartile of the calls' times."""
    started = time.perf_counter()
    work()
    times: list[float] = []
    if (now := time.perf_counter()) - started > limit_s:
        return now - started
    while not times or now - started < limit_s:
        before = now
        work()
        now = time.perf_counter()
        times.append(now - before)
    return sorted(times)[len(times) // 4]
