import re

import pytest
import torch

from tpiedge.errors import InternalError, OutOfMemory
from tpiedge.memory.arena import Arena, as_matrix


def test_a_matrix_is_a_view() -> None:
    arena = Arena(8192)
    extent = arena.bytes(4096, 4096)
    matrix = as_matrix(extent, 3, 5, 64, torch.float32)
    assert (matrix.shape, matrix.stride()) == ((3, 5), (16, 1))
    arena.buffer(4096, 4096)[64 + 4 : 64 + 8] = torch.tensor([2.5]).numpy().tobytes()
    assert matrix[1, 1] == 2.5
    assert matrix.data_ptr() % 4096 == 0
    with pytest.raises(InternalError, match="65 rows"):
        as_matrix(extent, 65, 5, 64, torch.float32)
    arena.close()
    assert matrix[1, 1] == 2.5  # the last view keeps the memory


def test_impossible_reservation_raises_out_of_memory() -> None:
    with pytest.raises(OutOfMemory, match=re.escape("cannot reserve 1152921.5 TB for weights")):
        Arena(1 << 60)
