import mmap
import re
from pathlib import Path

import pytest
import torch

from tpiedge.errors import InternalError, OutOfMemory
from tpiedge.memory.arena import Arena


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


def test_extents_are_page_aligned_and_do_not_overlap() -> None:
    arena = Arena(5 * 4096)
    extents = [arena.take(size) for size in (1, 4096, 4097, 0)]
    assert [(e.offset, e.length) for e in extents] == [(0, 4096), (4096, 4096), (8192, 8192), (16384, 0)]
    assert arena.used == 4 * 4096
    with pytest.raises(InternalError, match="has no room for 8192 after 16384"):
        arena.take(8192)
    arena.close()


def test_a_matrix_is_a_view() -> None:
    arena = Arena(8192)
    arena.take(4096)
    extent = arena.take(4096)
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
    extent = arena.take(64 << 20)
    arena.matrix(extent, 1, 16 << 20, 64 << 20, torch.float32).fill_(1)
    full = resident_bytes()
    arena.close()
    assert full - resident_bytes() > 60 << 20


def test_what_the_system_cannot_give_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemory, match=re.escape("cannot reserve 1152921.5 TB for weights")):
        Arena(1 << 60)
