from dataclasses import dataclass

import pytest
import torch

from tpiedge.host.device import usable_cores
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.panels import FORMATS, PANEL, PanelShape
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.node import capacity
from tpiedge.node.capacity import measure
from tpiedge.units import MIB

BUFFER = 8 * MIB


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@dataclass
class Clock:
    product_s: float
    now_s: float = 100.0
    products: int = 0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clocked(one_thread, monkeypatch):
    def begin(library, product_s):
        clock = Clock(product_s)

        class Clocked(Linear):
            def project(self, *given, **more):
                clock.products += 1
                clock.now_s += clock.product_s
                return super().project(*given, **more)

        monkeypatch.setattr(
            Linear, "create", lambda arithmetic, threads: Clocked(arithmetic, threads, library())
        )
        monkeypatch.setattr(capacity, "time", clock)
        monkeypatch.setattr(capacity, "_BUFFER_BYTES", BUFFER)
        return measure(1), clock

    return begin


@pytest.mark.parametrize("library", [kernel_library, lambda: None], ids=["usual", "torch"])
def test_capacity_is_bytes_divided_by_product_time(clocked, library):
    found, clock = clocked(library, 0.01)
    part = min(1.0, usable_cores())
    panel = PanelShape(FORMATS["q4"], PANEL, capacity._COLUMNS).nbytes
    panels = BUFFER // panel if library() is not None else 0
    assert found.weight_bytes_per_s == pytest.approx(part * BUFFER / 0.01)
    assert found.panel_bytes_per_s == pytest.approx(part * panels * panel / 0.01)
    assert clock.now_s - 100.0 < 0.32  # the promised 0.3 s, and the two products that warm up


@pytest.mark.parametrize("library", [kernel_library, lambda: None], ids=["usual", "torch"])
def test_slow_machine_is_measured_with_one_product(clocked, library):
    found, clock = clocked(library, 5.0)
    assert clock.products == (2 if library() is not None else 1)
    assert found.weight_bytes_per_s == pytest.approx(min(1.0, usable_cores()) * BUFFER / 5.0)
