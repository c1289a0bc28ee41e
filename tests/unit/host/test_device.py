"""Defaults for what tpiedge takes of a computer."""

import subprocess
import sys

import pytest

from tpiedge.host.device import default_memory_bytes, default_threads, free_disk_bytes, usable_cores
from tpiedge.units import GIB, MIB


@pytest.mark.parametrize(
    ("available", "taken"),
    [
        (0, 0),
        (100 * MIB, 0),
        (500 * MIB, 372 * MIB),  # 128 MiB stay
        (5 * GIB, 4 * GIB),  # a fifth stays
        (100 * GIB, 98 * GIB),  # 2 GiB stay
    ],
)
def test_memory_that_is_taken_by_default(available, taken):
    assert default_memory_bytes(available) == pytest.approx(taken, abs=1)


def test_threads_are_at_least_one_and_at_most_the_usable_cores():
    assert 1 <= default_threads() <= max(1, usable_cores())


def test_free_disk_of_a_folder_that_does_not_exist_yet(tmp_path):
    assert free_disk_bytes(tmp_path / "not" / "yet") == pytest.approx(free_disk_bytes(tmp_path), rel=0.1)


def test_the_module_loads_no_torch():
    code = "import sys, tpiedge.host.device, tpiedge.launch.standby; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
