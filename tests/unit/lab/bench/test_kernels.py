import math

import pytest
import torch

from tpiedge.errors import OutOfMemory, UserError
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.lab.bench.kernel_cases import BufferRotation, Case, cases_of, check_room
from tpiedge.lab.bench.kernel_times import Bench
from tpiedge.lab.verbs.bench_kernels import _KERNELS, _shapes

BUFFER_BYTES = 1 << 20
SHAPE = (64, 192)

library = kernel_library()
needs_native = pytest.mark.skipif(library is None, reason="native: the kernels are not built")


def cases(kernel: str, precision: str, tokens: int) -> list[Case]:
    return [
        case
        for make in cases_of([kernel], [SHAPE], [precision], [tokens], BufferRotation(BUFFER_BYTES))
        for case in make()
    ]


def test_shapes_flag_is_parsed() -> None:
    assert _shapes("4096x11008, 64x32") == [(4096, 11008), (64, 32)]
    for text in ("", "4096", "x", "16x64", "65x64", "99999x99999", "1x2x3", "-64x64"):
        with pytest.raises(UserError, match="--shapes"):
            _shapes(text)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("kernel", _KERNELS)
def test_bench_cases_give_equal_results_natively_and_in_torch(kernel: str, precision: str) -> None:
    (case,) = cases(kernel, precision, 3)
    assert case.precision == ("f32" if kernel in ("rms_norm", "rope", "swiglu") else precision)
    assert not case.quantised
    with Linear(case.arithmetic, 1, library) as own, Linear(case.arithmetic, 1, None) as peer:
        for copy in {0, case.copies - 1}:
            found, expected = case.run(own, copy), case.run(peer, copy)
            if kernel == "swiglu":
                continue  # torch's overwrites what it is given
            assert isinstance(found, torch.Tensor)
            assert isinstance(expected, torch.Tensor)
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


@needs_native
@pytest.mark.parametrize("precision", ["q4", "q8"])
def test_experts_of_a_bench_read_what_their_rows_choose(precision: str) -> None:
    (one,), (many,) = (cases("experts", precision, tokens) for tokens in (1, 300))
    (dense,) = cases("ffn", precision, 1)
    assert 0.5 < one.nbytes / dense.nbytes < 4  # units of few columns are filled up
    assert 12 < many.nbytes / one.nbytes < 16
    assert cases("experts", "f32", 1) == []
    with Linear(one.arithmetic, 1, library) as linear:
        first, second = (one.run(linear, copy) for copy in (0, 31))
        assert isinstance(first, torch.Tensor)
        assert isinstance(second, torch.Tensor)
        assert first.shape == (1, SHAPE[0])
        assert not torch.equal(first, second)


def test_too_large_bench_case_gives_a_one_line_error() -> None:
    wanted = (["ffn"], [(16384, 16384)], ["f32"], [8], BufferRotation(128 << 20))
    with pytest.raises(OutOfMemory) as caught:
        check_room(*wanted, 1 << 30)
    assert str(caught.value).startswith("ffn 16384x16384 in f32 takes 6.")
    assert "1.1 GB are free: give smaller --shapes" in str(caught.value)
    check_room(*wanted, 8 << 30)


def test_bytes_and_operations_of_cases_are_counted() -> None:
    hidden, columns = SHAPE
    (case,) = cases("project", "bf16", 5)
    assert case.operations == 2 * 5 * hidden * columns
    assert case.nbytes == 2 * hidden * columns + 4 * 5 * (hidden + columns)
    (quantised,) = cases("project", "q4", 1)
    assert hidden * columns / 2 < quantised.nbytes
    (whole,) = cases("ffn", "f32", 1)
    assert whole.operations == 3 * 2 * hidden * columns
    (seen,) = cases("attention", "f32", 2)
    assert seen.operations == 4 * (2048 + 2047) * hidden


def test_bench_report_has_all_figures() -> None:
    said: list[str] = []
    bench = Bench(library, BUFFER_BYTES, said.append)
    results = [
        found
        for kernel in ("project", "rms_norm")
        for make in cases_of([kernel], [SHAPE], ["f32"], [1, 32], BufferRotation(BUFFER_BYTES))
        for found in bench.measure(make, [1], 2)
    ]
    assert len(said) == len(results) == 4
    one, many, norm, _ = results
    assert (one["kernel"], one["tokens"], one["native"]) == ("project", 1, library is not None)
    assert many["native"] is False
    for found in results:
        assert found["repeats"] == 2
        for name in ("seconds", "bytes_per_s", "operations_per_s", "torch_seconds", "times_torch"):
            assert 0 < found[name]["min"] <= found[name]["median"] <= found[name]["max"] < math.inf
    assert norm["of_read_bandwidth"] is None
    if library is None:
        return
    assert one["of_read_bandwidth"]["median"] > 0
    assert one["of_roofline"]["median"] >= one["of_read_bandwidth"]["median"] * 0.999
