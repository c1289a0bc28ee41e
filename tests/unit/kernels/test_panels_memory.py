"""Products with quantised matrices for which the system has no memory."""

from collections.abc import Callable
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
    return pool.contract_panels(packed, ONE.data_ptr(), 1, wide)


def _ffn_panels(pool: Pool, gate: PanelMatrix, down: PanelMatrix, wide: bool = False) -> None:
    packed = 2 * pack_panels(gate) + pack_row_parallel(down, -10, 1 << 30)
    scratch_S, sums_TO = torch.zeros(48), torch.empty((1, 16), dtype=torch.int64)
    # Gates and what follows lie behind the normed rows: within this scratch, however wide those are.
    scratch = scratch_S.data_ptr() + 4 * (16 - gate.cols)
    pool.ffn_panels(packed, ONE.data_ptr(), sums_TO.data_ptr(), 1, ONES.data_ptr(), 1e-5, scratch, wide)


WITHOUT_MEMORY: dict[str, Callable[[Pool], object]] = {
    "contract": lambda pool: pool.contract(ONE.expand(BEYOND_MEMORY, 16), ONES, torch.empty(1, 16)),
    "ffn": lambda pool: pool.ffn(
        ONE, ONES[0], 1e-5, (ONES, ONES, ONES[:, :1].expand(16, BEYOND_MEMORY)), False, torch.empty(1, 16)
    ),
    "project_panels": lambda pool: pool.project_panels(ONE, [WIDE[0]], [torch.empty(1, 16)]),
    "contract_panels": lambda pool: _contract_panels(pool, WIDE[1], False),
    "contract_panels, wide": lambda pool: _contract_panels(pool, WIDE[1], True),
    "ffn_panels, gate and up": lambda pool: _ffn_panels(pool, WIDE[0], SMALL[1]),
    "ffn_panels, down": lambda pool: _ffn_panels(pool, SMALL[0], WIDE[1]),
    "ffn_panels, down, wide": lambda pool: _ffn_panels(pool, SMALL[0], WIDE[1], True),
}


@pytest.mark.parametrize("call", WITHOUT_MEMORY.values(), ids=WITHOUT_MEMORY)
def test_a_product_without_memory_says_so(call: Callable[[Pool], object]) -> None:
    """Blocks with attention: test_stack.py."""
    with closing(Pool(open_library(), 2)) as pool:
        with pytest.raises(MemoryError, match="native kernels"):
            call(pool)
        y_TO = torch.empty(1, 16)
        pool.contract(ONE, ONES, y_TO)
        assert y_TO.eq(16).all()
        _ffn_panels(pool, *SMALL)


def test_a_product_without_memory_says_so_to_its_own_caller() -> None:
    with closing(Pool(open_library(), 2)) as pool, ThreadPoolExecutor(2) as at_once:

        def fail(_: int) -> None:
            with pytest.raises(MemoryError):
                pool.project_panels(ONE, [WIDE[0]], [torch.empty(1, 16)])

        def succeed(_: int) -> None:
            assert _contract_panels(pool, SMALL[1], False)

        for done in [at_once.submit(call, at) for at in range(200) for call in (fail, succeed)]:
            done.result()
