import mmap
import re
from pathlib import Path

import pytest
import torch

from tpiedge.errors import InternalError, OutOfMemory
from tpiedge.memory.arena import Arena, Extent


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


def test_a_matrix_is_a_view() -> None:
    arena = Arena(8192)
    extent = Extent(4096, 4096)
    matrix = arena.matrix(extent, 3, 5, 64, torch.float32)
    assert (matrix.shape, matrix.stride()) == ((3, 5), (16, 1))
    arena.buffer(extent)[64 + 4 : 64 + 8] = torch.tensor([2.5]).numpy().tobytes()
    assert matrix[1, 1] == 2.5
    assert matrix.data_ptr() % 4096 == 0
    with pytest.raises(InternalError, match="65 rows"):
        arena.matrix(extent, 65, 5, 64, torch.float32)
    arena.close()
    assert matrix[1, 1] == 2.5  # the last view keeps the memory


def test_nothing_is_resident_before_it_is_written() -> None:
    before = resident_bytes()
    arena = Arena(512 << 20)
    assert resident_bytes() - before < 16 << 20
    arena.close()


def test_closing_returns_the_memory() -> None:
    arena = Arena(64 << 20)
    extent = Extent(0, 64 << 20)
    arena.matrix(extent, 1, 16 << 20, 64 << 20, torch.float32).fill_(1)
    full = resident_bytes()
    arena.close()
    assert full - resident_bytes() > 60 << 20


def test_what_the_system_cannot_give_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemory, match=re.escape("cannot reserve 1152921.5 TB for weights")):
        Arena(1 << 60)
