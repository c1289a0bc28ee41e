"""What the probes refuse; what they measure is tested with the command that shows it."""

import pytest
import torch

from tests.unit.kernels.test_linear import open_library
from tpiedge.kernels.probes import Probes


def test_every_thread_reads_something() -> None:
    assert Probes.create(open_library(), 600).bytes_per_s(2) > 0
    with pytest.raises(ValueError, match="600 bytes has not 256 for each of 3 threads"):
        Probes.create(open_library(), 600).bytes_per_s(3)


@pytest.mark.parametrize("buffer", [torch.zeros(600), torch.zeros(1200, dtype=torch.uint8)[::2]])
def test_a_buffer_is_bytes_side_by_side(buffer: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="not contiguous bytes"):
        Probes(open_library(), buffer)
