"""A node's measurement of itself: within its time, with numbers that can be."""

import time

import pytest
import torch

from tpiedge.kernels.linear import Linear
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.node import capacity
from tpiedge.node.capacity import measure
from tpiedge.units import MIB


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.alone
@pytest.mark.parametrize("library", [kernel_library, lambda: None], ids=["usual", "torch"])
def test_measure_takes_a_fraction_of_a_second(patience, one_thread, monkeypatch, library):
    monkeypatch.setattr(Linear, "create", lambda arithmetic, threads: Linear(arithmetic, threads, library()))
    started = time.perf_counter()
    found = measure(1)
    assert time.perf_counter() - started < 3.0 * patience  # 0.5 s on a machine that does nothing else
    assert found.threads == 1
    assert 1e7 < found.weight_bytes_per_s < 1e12
    assert 1e7 < found.panel_bytes_per_s < 1e12


def test_the_buffer_exceeds_the_cache_but_not_the_memory(monkeypatch):
    monkeypatch.setattr(capacity, "_last_level_cache_bytes", lambda: 48 * MIB)
    monkeypatch.setattr(capacity, "available_memory_bytes", lambda: 8 << 30)
    assert capacity._buffer_bytes() == 96 * MIB
    monkeypatch.setattr(capacity, "available_memory_bytes", lambda: 100 * MIB)
    assert capacity._buffer_bytes() == 25 * MIB


def test_the_largest_cache_counts(tmp_path):
    for index, size in enumerate(["32K", "1024K", "33M"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert capacity._last_level_cache_bytes(tmp_path) == 33 * MIB
    (tmp_path / "index0" / "size").write_text("?\n")
    assert capacity._last_level_cache_bytes(tmp_path) == 0
