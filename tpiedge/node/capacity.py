"""What this process can compute per second, measured in a fraction of a second.

A decode step reads every weight once for one token, so its speed is bytes of weights per second: a figure for weights
in bf16, which stands for f32, too, and one for q4, which stands for q8. Of several passes the one at the faster quarter
counts: a machine that joins is often busy with starting, which passes, so the median promises too little; the best pass
may be luck.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from tpiedge.host.device import available_memory_bytes, usable_cores
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.kernels.panels import PANEL, PanelShape
from tpiedge.units import MIB
from tpiedge.wire.epochs import Capacity

_COLUMNS = 2048
_PANEL_BITS = 4
# More than the caches of the processors that weak machines have.
_BUFFER_BYTES = 96 * MIB


def measure(threads: int) -> Capacity:
    """Measure with `threads` threads, in about 0.3 s and at most 96 MiB, which are given back. Without native
    kernels it takes no panels. Sets torch's number of threads, for the whole process."""
    torch.set_num_threads(threads)
    # Less where memory is short. Filled: memory that was never written is one page of zeros, read from the cache.
    nbytes = max(8 * MIB, min(_BUFFER_BYTES, available_memory_bytes() // 4))
    weights = torch.full((nbytes // (2 * _COLUMNS), _COLUMNS), 0.02, dtype=torch.bfloat16)
    # A quota is used up in bursts, between which so short a measurement fits.
    part = min(1.0, usable_cores() / threads)
    x_TI = torch.full((1, _COLUMNS), 0.5)
    with Linear.create(Arithmetic.F32, threads) as linear:
        return Capacity(
            threads,
            part * weights.nbytes / _usual_s(lambda: linear.project(x_TI, weights), 0.16),
            part * _panel_bytes_per_s(linear, x_TI, weights) if linear.native else 0.0,
        )


def _panel_bytes_per_s(linear: Linear, x_TI: Tensor, weights: Tensor) -> float:
    """With the same bytes as panels: what codes and scales are makes no difference in time."""
    part = weights.view(torch.uint8).flatten()
    panel = PanelShape(_PANEL_BITS, PANEL, _COLUMNS)
    panels = part.nbytes // panel.nbytes
    rows = panels * PANEL
    matrix = PanelMatrix(part, _PANEL_BITS, rows, _COLUMNS, rows, 0, transposed=False)
    return panels * panel.nbytes / _usual_s(lambda: linear.project(x_TI, matrix), 0.1)


def _usual_s(work: Callable[[], object], limit_s: float) -> float:
    """Seconds of one call, from as many calls as fit into `limit_s`: at least one after a first one that warms up,
    or the first alone where it takes longer than that."""
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
