"""Products against float64, torch and native; the native ones also bit for bit against themselves."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tpiedge.kernels
from tests.unit.kernels.instruction_sets import AVAILABLE
from tpiedge.kernels import shared_library as library
from tpiedge.kernels.library import NATIVE_TOKENS
from tpiedge.kernels.linear import Arithmetic, Linear
from tpiedge.kernels.shared_library import KernelLibrary
from tpiedge.native_code import find_library

FOLDER = Path(tpiedge.kernels.__path__[0])
SHAPES = [(1, 1), (1, 100), (5, 60), (100, 100), (37, 1003), (1003, 37), (130, 257), (300, 64)]
TOKENS = [*range(1, 18), 128]
DTYPES = [torch.float32, torch.bfloat16]
ENGINES = ["torch", *AVAILABLE]


def open_library(isa: str | None = None) -> KernelLibrary:
    path = find_library(FOLDER)
    if path is None:
        pytest.skip("native: the kernels are not built")
    try:
        return KernelLibrary(library.load(path), isa)
    except ValueError as error:
        pytest.skip(f"system: {error}")


@contextmanager
def opened(engine: str, arithmetic: Arithmetic = Arithmetic.F32, threads: int = 1) -> Iterator[Linear]:
    found = None if engine == "torch" else open_library(engine)
    with Linear(arithmetic, threads, found) as linear:
        yield linear


def weights(rows: int, cols: int, dtype: torch.dtype) -> Tensor:
    stride = -(-cols // 32) * 32 + 32
    w = torch.full((rows, stride), torch.nan, dtype=dtype)
    w[:, :cols] = torch.randn(rows, cols)
    return w[:, :cols]


def assert_close(actual: Tensor, expected: Tensor, terms: int) -> None:
    assert actual.dtype is torch.float32
    assert actual.shape == expected.shape
    assert (actual.double() - expected).abs().max().item() <= 1e-6 * (terms + 10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_products_equal_float64(engine: str, threads: int, dtype: torch.dtype) -> None:
    with opened(engine, threads=threads) as linear:
        for rows, cols in SHAPES:
            w = weights(rows, cols, dtype)
            for tokens in TOKENS:
                x, z = torch.randn(tokens, cols), torch.randn(tokens, rows)
                assert_close(linear.project(x, w), x.double() @ w.double().T, cols)
                assert_close(linear.contract(z, w), z.double() @ w.double(), rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", AVAILABLE)
def test_row_bits_do_not_depend_on_other_rows_or_threads(isa: str, dtype: torch.dtype) -> None:
    for rows, cols in [(130, 257), (37, 1003), (259, 520)]:
        w = weights(rows, cols, dtype)
        x, z = torch.randn(NATIVE_TOKENS, cols), torch.randn(NATIVE_TOKENS, rows)
        with opened(isa, threads=1) as linear:
            y, u = linear.project(x, w), linear.contract(z, w)
        for threads in (1, 2, 3):
            with opened(isa, threads=threads) as linear:
                for tokens in range(1, NATIVE_TOKENS + 1):
                    first = NATIVE_TOKENS - tokens
                    assert torch.equal(linear.project(x[first:], w), y[first:])
                    assert torch.equal(linear.contract(z[first:], w), u[first:])


@pytest.mark.parametrize(
    ("x", "w", "says"),
    [
        (torch.ones(1, 3), torch.ones(3, 2), "not f32 \\[1, 2\\]"),
        (torch.ones(2), torch.ones(3, 2), "activations"),
        (torch.ones(1, 2).double(), torch.ones(3, 2), "activations"),
        (torch.ones(1, 2), torch.ones(3, 2).double(), "matrix in f32 or bf16"),
        (torch.ones(1, 2), torch.ones(2, 3).t(), "strides"),
        (torch.ones(1, 2), torch.ones(1, 2).expand(3, 2), "strides"),
        (torch.ones(1, 2), torch.ones(3), "weights"),
        (torch.ones(1, 2, device="meta"), torch.ones(3, 2), "main memory"),
    ],
)
def test_wrong_tensors_are_refused(x: Tensor, w: Tensor, says: str) -> None:
    with opened("torch") as linear, pytest.raises(ValueError, match=says):
        linear.project(x, w)


@pytest.fixture
def fresh_lookup() -> Iterator[None]:
    library.kernel_library.cache_clear()
    yield
    library.kernel_library.cache_clear()


def test_disabled_native_kernels_fall_back_to_torch_and_log_once(
    fresh_lookup: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TPIEDGE_NATIVE", "0")
    caplog.set_level(logging.INFO)
    for _ in range(2):
        with Linear.create(Arithmetic.F32, 2) as linear:
            assert linear.pool is None
    assert [record.message for record in caplog.records] == [
        "native kernels are switched off (TPIEDGE_NATIVE=0): unset it; "
        "without them there is no int8 arithmetic, f32 and bf16 are slower"
    ]
