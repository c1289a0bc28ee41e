"""The bits of a tiny quantised model: the same on every instruction set, in any cut over nodes, and in every version.

Machines of other architectures and with other compilers have these constants, too. Who changes one changes what
models answer.
"""

import pytest

from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.integer_model import FFN_UNITS, HEADS, digest, on_nodes, stacked
from tests.unit.kernels.test_linear import opened
from tpiedge.kernels.grid import Grid
from tpiedge.kernels.linear import Arithmetic
from tpiedge.wire.fields import KVPrecision

GOLDEN: dict[tuple[int, KVPrecision], str] = {
    (4, "f32"): "debc273a7a95e68bb7fe73aba3be3dbaacae207e6f14fd248cce5af84c768cb4",
    (4, "bf16"): "3d20b9aed305027eb77a55ad10a7baa320fe0695d22bb9445ff4c9cc4d4df881",
    (4, "q8"): "63f59c74acc1cc24ed2137c0027de6ab5efd5a79dbc9da84c13e94114dad361c",
    (4, "q4"): "38367bc54b3975ad1e7e94d34403aeac6b5a831676df7fe9faf5f5e151b7ba43",
    (8, "f32"): "520e5d9b24c86d4c910de8372c168c95d62b974ae36cff71e4e49822c42a9409",
    (8, "bf16"): "df6676e41f1a3589e74b4b9f9f689d7b95d8af66c0bd6666304923a2c7d9c847",
    (8, "q8"): "1e36a93d4f7ae96dae7baa87da801b75dbb1f775a16b19cb5a6e9c8574b7e426",
    (8, "q4"): "19a36b7b238f9dbe241e6145237cae04d99de9704ee6ca53a9abf9a0cae952bd",
}
GRID = Grid(-16)
CASES = [(bits, kv) for bits in (4, 8) for kv in ("f32", "bf16", "q8", "q4")]
STEPS = (7, 1, 1, 20)


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize(("bits", "kv"), CASES)
def test_layer_stack_output_matches_the_golden_digest(isa: str, bits: int, kv: KVPrecision) -> None:
    with opened(isa, Arithmetic.INT8, 2) as linear:
        assert linear.pool is not None
        found = stacked(bits, kv, GRID, STEPS, linear.pool)
    assert found.isfinite().all()
    assert digest(found) == GOLDEN[bits, kv]


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize(("bits", "kv"), CASES)
def test_threads_chunks_and_sum_width_keep_golden_bits(isa: str, bits: int, kv: KVPrecision) -> None:
    for threads, steps, most in ((1, (29,), GRID.most), (3, (3, 4, 20, 2), GRID.most), (2, STEPS, 0)):
        with opened(isa, Arithmetic.INT8, threads) as linear:
            assert linear.pool is not None
            found = stacked(bits, kv, Grid(GRID.exponent, most), steps, linear.pool)
        assert digest(found) == GOLDEN[bits, kv], (threads, steps, most)


@pytest.mark.parametrize(
    ("heads", "units"),
    [
        ((0, HEADS), (0, FFN_UNITS)),
        ((0, 2, HEADS), (0, 1, FFN_UNITS)),
        ((0, 3, HEADS), (0, 0, FFN_UNITS)),  # within the group of a KV head; a node without a part of the FFN
        ((0, 1, 2, 5, HEADS), (0, 1, 2, 2, FFN_UNITS)),
    ],
)
@pytest.mark.parametrize(("bits", "kv"), CASES)
def test_golden_bits_do_not_depend_on_the_split_over_nodes(
    bits: int, kv: KVPrecision, heads: tuple[int, ...], units: tuple[int, ...]
) -> None:
    for number, isa in enumerate(AVAILABLE[::2]):
        grid = Grid.among(GRID.exponent, len(heads) - 1) if number % 2 else Grid(GRID.exponent, 1 << 18)
        with opened(isa, Arithmetic.INT8) as linear:
            assert linear.pool is not None
            found = on_nodes(bits, kv, (heads, units), grid, STEPS, linear.pool)
        assert digest(found) == GOLDEN[bits, kv], isa
