from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import torch

from tests.unit.kernels.panel_reference import random_matrix
from tests.unit.kernels.test_linear import open_library
from tpiedge.kernels.library import Pool, pack_panels, pack_row_parallel
from tpiedge.kernels.panel_matrix import PanelMatrix


class Unchecked(PanelMatrix):
    """Lacks the bytes that it says it has: for products that end before they read any."""

    def __post_init__(self) -> None:
        pass


BEYOND_MEMORY = 1 << 50
ONE, ONES = torch.ones(1, 16), torch.ones(16, 16)
SMALL = [
    random_matrix(np.random.default_rng(6), 4, 16, 16, 16, transposed).matrix for transposed in (False, True)
]
WIDE = [
    Unchecked(torch.empty(0, dtype=torch.uint8), 4, 16, BEYOND_MEMORY, 16, 0, transposed)
    for transposed in (False, True)
]


def _contract_panels(pool: Pool, w: PanelMatrix, wide: bool) -> bool:
    sums_TO = torch.empty((1, 16), dtype=torch.int64)
    packed = pack_row_parallel(w, -10, 1 << 30, sums_TO.data_ptr())
    return pool.call("tpiedge_panels_contract", ONE.data_ptr(), 1, packed, wide)


def test_a_product_without_memory_says_so_to_its_own_caller() -> None:
    with closing(Pool(open_library(), 2)) as pool, ThreadPoolExecutor(2) as at_once:

        def fail(_: int) -> None:
            packed = pack_panels(WIDE[0], ONES.data_ptr())
            with pytest.raises(MemoryError):
                pool.call("tpiedge_panels_project", ONE.data_ptr(), 1, packed, 1)

        def succeed(_: int) -> None:
            assert _contract_panels(pool, SMALL[1], False)

        for done in [at_once.submit(call, at) for at in range(200) for call in (fail, succeed)]:
            done.result()
