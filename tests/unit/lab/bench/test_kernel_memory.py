"""What the operands of the kernels' benchmark will take is known before, and too much is refused."""

import pytest
import torch

from tpiedge.errors import OutOfMemory
from tpiedge.kernels.kv_pages import PageLayout
from tpiedge.kernels.panel_matrix import PanelMatrix
from tpiedge.lab.bench.kernel_cases import Case, cases_of, random_panels
from tpiedge.lab.bench.kernel_memory import (
    BITS,
    POSITIONS,
    Rotation,
    cache_nbytes,
    check_room,
    heads_of,
    largest,
    matrix_nbytes,
)

ROTATION = Rotation(1 << 20)
SHAPES = [(64, 192), (192, 64), (300, 1000), (1024, 96)]
TOKENS = [1, 3, 700]


def storages(case: Case) -> dict[int, int]:
    """Address -> bytes of every tensor that the case's call reaches."""
    found: dict[int, int] = {}
    waiting = [cell.cell_contents for cell in case.run.__closure__ or ()]
    while waiting:
        one = waiting.pop()
        match one:
            case torch.Tensor():
                memory = one.untyped_storage()
                found[memory.data_ptr()] = memory.nbytes()
            case PanelMatrix():
                waiting.append(one.data_B)
            case PageLayout():
                waiting.append(one.store_PB)
            case list() | tuple():
                waiting += one
    return found


@pytest.mark.parametrize("precision", ["f32", "bf16", "q8", "q4"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", ["project", "contract", "ffn", "attention", "rms_norm", "rope", "swiglu"])
def test_as_many_bytes_as_are_taken(kernel, precision, shape):
    (make,) = cases_of([kernel], [shape], [precision], TOKENS, ROTATION)
    taken: dict[int, int] = {}
    for case in make():
        taken |= storages(case)
    predicted, name = largest([kernel], [shape], [precision], TOKENS, ROTATION)
    assert name == f"{kernel} {shape[0]}x{shape[1]} in {precision}"
    results = 2 * 4 * max(TOKENS) * max(shape)
    # Norm weights and tables of positions are small.
    assert sum(taken.values()) - (1 << 20) <= predicted <= sum(taken.values()) + results


@pytest.mark.parametrize("tokens", [[POSITIONS + 1], [1, POSITIONS, 4 * POSITIONS]])
def test_attention_of_more_tokens_than_positions_takes_nothing(tokens):
    (make,) = cases_of(["attention"], [(64, 192)], ["f32"], tokens, ROTATION)
    ran = [case.tokens for case in make()]
    predicted = largest(["attention"], [(64, 192)], ["f32"], tokens, ROTATION)
    assert predicted == largest(["attention"], [(64, 192)], ["f32"], ran, ROTATION)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("rows", "cols"), [(300, 40), (128, 64), (1, 33)])
def test_of_a_matrix(rows, cols, transposed):
    for precision, bits in BITS.items():
        there = random_panels(bits, rows, cols, transposed=transposed)
        assert matrix_nbytes(precision, rows, cols, transposed=transposed) == there.data_B.numel()
    assert matrix_nbytes("bf16", rows, cols, transposed=transposed) == 2 * rows * cols


def test_of_a_cache():
    assert heads_of(4096) == (32, 8, 128)
    assert heads_of(64) == (1, 1, 64)
    assert cache_nbytes(4096, "f32") == 2 * 8 * 2048 * 128 * 4


def test_the_most_is_what_counts():
    few = largest(["project"], [(64, 64)], ["q4"], [1], ROTATION)
    more = largest(["project", "ffn"], [(64, 64), (4096, 11008)], ["q4", "f32"], [1], ROTATION)
    assert few < more
    assert more[1] == "ffn 4096x11008 in f32"
    assert more[0] > 3 * 2 * 4 * 4096 * 11008


def test_what_does_not_fit_is_one_line():
    needed = largest(["ffn"], [(16384, 16384)], ["f32"], [8], Rotation(128 << 20))
    with pytest.raises(OutOfMemory) as caught:
        check_room(needed, Rotation(128 << 20), 1 << 30)
    assert str(caught.value).startswith("ffn 16384x16384 in f32 takes 6.")
    assert " GB" in str(caught.value)
    assert "1.1 GB are free: give smaller --shapes" in str(caught.value)
    assert "\n" not in str(caught.value)
    check_room(needed, Rotation(128 << 20), 8 << 30)
