"""Products against float64, torch and native; the native ones also bit for bit against themselves."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tpiedge.kernels
from tests.unit.kernels.instruction_sets import AVAILABLE
from tpiedge.kernels import shared_library as library
from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.dispatch import NATIVE_TOKENS
from tpiedge.kernels.library import Pool
from tpiedge.kernels.linear import Linear
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
    """As in a pack: rows at a stride of a multiple of 64 bytes. What lies between them is not data."""
    stride = -(-cols // 32) * 32 + 32
    w = torch.full((rows, stride), torch.nan, dtype=dtype)
    w[:, :cols] = torch.randn(rows, cols)
    return w[:, :cols]


def assert_close(actual: Tensor, expected: Tensor, terms: int, tolerance: float = 1e-6) -> None:
    """Rounding errors of a sum of `terms` products of unit normal numbers."""
    assert actual.dtype is torch.float32
    assert actual.shape == expected.shape
    assert (actual.double() - expected).abs().max().item() <= tolerance * (terms + 10)


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
@pytest.mark.parametrize("engine", ENGINES)
def test_bf16_arithmetic_rounds_the_activations(engine: str, dtype: torch.dtype) -> None:
    # torch's product of two bf16 matrices is itself rounded to bf16.
    tolerance = 1e-2 if engine == "torch" and dtype is torch.bfloat16 else 1e-6
    with opened(engine, Arithmetic.BF16) as linear:
        w = weights(70, 90, dtype)
        x, z = torch.randn(3, 90), torch.randn(3, 70)
        assert_close(linear.project(x, w), x.bfloat16().double() @ w.double().T, 90, tolerance)
        assert_close(linear.contract(z, w), z.bfloat16().double() @ w.double(), 70, tolerance)


@pytest.mark.parametrize("engine", ENGINES)
def test_empty_shares_and_steps(engine: str) -> None:
    with opened(engine, threads=2) as linear:
        w = torch.randn(0, 64)
        assert linear.project(torch.randn(2, 64), w).shape == (2, 0)
        assert torch.equal(linear.contract(torch.randn(2, 0), w), torch.zeros(2, 64))
        assert linear.project(torch.randn(0, 64), torch.randn(5, 64)).shape == (0, 5)
        assert linear.contract(torch.randn(0, 5), torch.randn(5, 64)).shape == (0, 64)


@pytest.mark.parametrize("engine", ENGINES)
def test_activations_may_be_strided(engine: str) -> None:
    with opened(engine) as linear:
        w, x = torch.randn(9, 8), torch.randn(3, 16)[:, ::2]
        assert_close(linear.project(x, w), x.double() @ w.double().T, 8)
        assert_close(linear.contract(x, w[:8]), x.double() @ w[:8].double(), 8)


def _products(linear: Linear, x: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return linear.project(x, w), linear.contract(z, w)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", AVAILABLE)
def test_bits_of_a_row_depend_neither_on_other_rows_nor_on_threads(isa: str, dtype: torch.dtype) -> None:
    for rows, cols in [(130, 257), (37, 1003), (259, 520)]:
        w = weights(rows, cols, dtype)
        x, z = torch.randn(NATIVE_TOKENS, cols), torch.randn(NATIVE_TOKENS, rows)
        with opened(isa, threads=1) as linear:
            y, u = _products(linear, x, z, w)
        for threads in (1, 2, 3):
            with opened(isa, threads=threads) as linear:
                for tokens in range(1, NATIVE_TOKENS + 1):
                    first = NATIVE_TOKENS - tokens
                    some = _products(linear, x[first:], z[first:], w)
                    assert torch.equal(some[0], y[first:])
                    assert torch.equal(some[1], u[first:])


@pytest.mark.parametrize("isa", AVAILABLE)
def test_bits_of_a_project_do_not_depend_on_the_share(isa: str) -> None:
    w, x = weights(101, 90, torch.bfloat16), torch.randn(5, 90)
    with opened(isa, threads=2) as linear:
        whole = linear.project(x, w)
        assert torch.equal(torch.cat((linear.project(x, w[:39]), linear.project(x, w[39:])), 1), whole)


@pytest.mark.parametrize("isa", AVAILABLE)
def test_zero_rows_of_padding_change_no_bit(isa: str) -> None:
    w = torch.cat((torch.randn(37, 96), torch.zeros(27, 96)))
    z = torch.randn(3, 64)
    with opened(isa) as linear:
        assert torch.equal(linear.contract(z, w), linear.contract(z[:, :37], w[:37]))


def test_runs_repeat_bit_for_bit() -> None:
    w, x, z = weights(300, 700, torch.bfloat16), torch.randn(7, 700), torch.randn(7, 300)
    with Linear(Arithmetic.F32, 2, open_library()) as linear:
        y, u = _products(linear, x, z, w)
        for _ in range(200):
            again = _products(linear, x, z, w)
            assert torch.equal(again[0], y)
            assert torch.equal(again[1], u)


@pytest.mark.parametrize("multiply", [Linear.project, Linear.contract])
def test_one_pool_may_serve_two_threads(multiply: Callable[[Linear, Tensor, Tensor], Tensor]) -> None:
    w = torch.randn(256, 256) if multiply is Linear.project else torch.randn(256, 4096)
    inputs = [torch.randn(8, 256) for _ in range(2)]
    with Linear(Arithmetic.F32, 2, open_library()) as linear:
        expected = [multiply(linear, x, w) for x in inputs]
        results: list[list[bool]] = [[], []]

        def work(i: int) -> None:
            for _ in range(100):
                results[i].append(torch.equal(multiply(linear, inputs[i], w), expected[i]))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert results == [[True] * 100] * 2


def _threads_of_process() -> set[str]:
    return {task.name for task in Path("/proc/self/task").iterdir()}


def _have_gone(threads: set[str], limit_s: float = 5.0) -> bool:
    """Within the limit. A thread that was joined is listed for a moment longer, and nothing tells of its end."""
    deadline = time.monotonic() + limit_s
    while threads & _threads_of_process():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="system: counts threads in /proc")
def test_close_ends_the_threads() -> None:
    found = open_library()
    before = _threads_of_process()
    linear = Linear(Arithmetic.F32, 4, found)
    own = _threads_of_process() - before
    assert len(own) == 3
    linear.close()
    linear.close()
    assert _have_gone(own)
    assert not linear.native
    assert linear.project(torch.ones(1, 2), torch.ones(3, 2)).tolist() == [[2.0, 2.0, 2.0]]


def test_a_closed_pool_refuses() -> None:
    pool = Pool(open_library(), 1)
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.project(torch.ones(1, 2), [torch.ones(3, 2)], [torch.empty(1, 3)])


@pytest.mark.parametrize(
    ("x", "w", "says"),
    [
        (torch.ones(1, 3), torch.ones(3, 2), "not f32 \\[tokens, 2\\]"),
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


def test_no_threads_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Linear(Arithmetic.F32, 0, None)


@pytest.fixture
def fresh_lookup() -> Iterator[Callable[[], KernelLibrary | None]]:
    library.kernel_library.cache_clear()
    yield library.kernel_library
    library.kernel_library.cache_clear()


Lookup = Callable[[], KernelLibrary | None]
Patch = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture


def test_switched_off_computes_with_torch_and_says_so_once(
    fresh_lookup: Lookup, monkeypatch: Patch, caplog: Log
) -> None:
    monkeypatch.setenv("TPIEDGE_NATIVE", "0")
    caplog.set_level(logging.INFO)
    for _ in range(2):
        with Linear.create(Arithmetic.F32, 2) as linear:
            assert not linear.native
    assert [record.message for record in caplog.records] == [
        "native kernels are switched off (TPIEDGE_NATIVE=0): unset it; "
        "without them q8 and q4 cannot be computed, f32 and bf16 are slower"
    ]


def test_not_built_computes_with_torch_and_says_so(
    fresh_lookup: Lookup, monkeypatch: Patch, caplog: Log
) -> None:
    monkeypatch.delenv("TPIEDGE_NATIVE", raising=False)
    monkeypatch.setattr(library, "find_library", lambda folder: None)
    assert fresh_lookup() is None
    assert "not built" in caplog.text
    assert library.why_missing() == (
        "are not built: install a C++ compiler and type 'make setup', or install a wheel of tpiedge"
    )


def test_an_unknown_instruction_set_is_noticed(fresh_lookup: Lookup, monkeypatch: Patch, caplog: Log) -> None:
    open_library()
    monkeypatch.setenv("TPIEDGE_NATIVE", "sse9")
    assert fresh_lookup() is None
    assert "sse9" in caplog.text
    assert library.why_missing().startswith("cannot be used (this CPU or build of the kernels has no sse9): ")


def test_a_named_instruction_set_is_used(fresh_lookup: Lookup, monkeypatch: Patch) -> None:
    open_library()
    monkeypatch.setenv("TPIEDGE_NATIVE", "portable")
    found = fresh_lookup()
    assert found is not None
    assert found.isa == "portable"
    assert library.why_missing() == ""


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "_native.so"
    path.write_bytes(b"not a library")
    with pytest.raises(OSError, match="_native"):
        library.load(path)
