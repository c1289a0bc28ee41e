"""What the kernels are measured with, and what is told of it."""

import math
from collections.abc import Callable

import pytest
import torch

from tpiedge.errors import UserError
from tpiedge.kernels.arithmetic import Arithmetic
from tpiedge.kernels.grid import widened
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.probes import Probes
from tpiedge.kernels.shared_library import kernel_library
from tpiedge.lab.bench.figures import Repeats
from tpiedge.lab.bench.kernel_cases import GRID, KERNELS, Case, case_count, cases_of, random_panels
from tpiedge.lab.bench.kernel_memory import Rotation
from tpiedge.lab.bench.kernel_times import Bench, _CallTimer, last_level_cache_bytes
from tpiedge.lab.verbs.bench_kernels import _numbers, _shapes
from tpiedge.testing.clock import ManualClock

BUFFER_BYTES = 1 << 20
SHAPE = (64, 192)

library = kernel_library()
needs_native = pytest.mark.skipif(library is None, reason="native: the kernels are not built")


def cases(kernel: str, precision: str, tokens: int) -> list[Case]:
    return [
        case
        for make in cases_of([kernel], [SHAPE], [precision], [tokens], Rotation(BUFFER_BYTES))
        for case in make()
    ]


def test_shapes_and_numbers() -> None:
    assert _shapes("4096x11008, 64x32") == [(4096, 11008), (64, 32)]
    assert _numbers("--tokens", "1, 20", 20) == [1, 20]
    for text in ("", "4096", "x", "16x64", "65x64", "99999x99999", "1x2x3", "-64x64"):
        with pytest.raises(UserError, match="--shapes"):
            _shapes(text)
    for text in ("", "0", "21", "1,", "a", "1.5", "9" * 5000):
        with pytest.raises(UserError, match=r"--tokens .* is not a list of numbers from 1 to 20"):
            _numbers("--tokens", text, 20)


def test_operands_lie_further_apart_than_the_caches() -> None:
    assert Rotation(1000).copies(300) == 4
    assert Rotation(1000).copies(5000) == 2
    assert Rotation(1 << 40).copies(1) == 32
    assert last_level_cache_bytes() >= 1 << 16


@needs_native
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_random_panels_are_numbers(bits: int, transposed: bool) -> None:
    rows, cols = 300, 40
    w = random_panels(bits, rows, cols, transposed=transposed)
    assert w.shape == (rows, cols)
    with Linear(Arithmetic.INT8, 1, library) as linear:
        x = torch.ones(1, w.inputs)
        y = widened(linear.contract(x, w, GRID), GRID) if transposed else linear.project(x, w)
    assert y.shape == (1, w.outputs)
    assert y.isfinite().all()
    assert y.abs().max() > 0


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_case_runs_natively_and_with_torch_alike(kernel: str, precision: str) -> None:
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
@pytest.mark.parametrize("precision", ["q8", "q4"])
@pytest.mark.parametrize("kernel", ["project", "contract", "ffn", "attention"])
def test_what_is_quantised_is_timed_without_torch(kernel: str, precision: str) -> None:
    bench = Bench(library, BUFFER_BYTES, lambda _: None)
    (case,) = cases(kernel, precision, 1)
    assert case.quantised
    (found,) = bench.measure(lambda: [case], [1], Repeats(1, 0.0, ManualClock(), least=2, most=2))
    assert found["native"]
    assert found["seconds"]["median"] > 0
    assert found["torch_seconds"] is found["times_torch"] is None


def test_bytes_and_operations() -> None:
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


def test_activations_are_measured_once_whatever_the_weights_are() -> None:
    found = [
        case
        for make in cases_of(["rms_norm", "project"], [SHAPE], ["f32", "bf16"], [1], Rotation(BUFFER_BYTES))
        for case in make()
    ]
    assert [(case.kernel, case.precision) for case in found] == [
        ("rms_norm", "f32"),
        ("project", "f32"),
        ("project", "bf16"),
    ]


@pytest.mark.parametrize("kernels", [["rms_norm", "attention"], list(KERNELS)])
def test_cases_are_counted_before_they_are_made(kernels: list[str]) -> None:
    wanted = (kernels, [SHAPE, (64, 32)], ["q8", "f32"], [1, 2048, 2049])
    made = [case for make in cases_of(*wanted, Rotation(1)) for case in make()]
    assert case_count(*wanted) == len(made)


class Sampled:
    """A timer of a case each call of which takes so long, and the copies that its calls were given."""

    def __init__(self, call_s: Callable[[int], float], copies: int) -> None:
        self.copies: list[int] = []
        clock = ManualClock()

        def run(_linear: Linear, copy: int) -> None:
            clock.advance(call_s(len(self.copies)))
            self.copies.append(copy)

        case = Case("project", "1x1", "f32", 1, 1, 1, int8=False, streams=True, copies=copies, run=run)
        with Linear(Arithmetic.F32, 1, None) as linear:
            self.timer = _CallTimer(case, linear, clock.now)

    def calls(self) -> int:
        """Of one more sample."""
        before = len(self.copies)
        self.timer.sample()
        return len(self.copies) - before


def test_a_sample_of_slow_calls_is_one_call_however_many_copies_there_are() -> None:
    slow = Sampled(lambda _: 0.2, copies=32)
    assert [slow.calls() for _ in range(3)] == [1, 1, 1]
    assert slow.copies == [0, 1, 2, 3, 4]
    slower = Sampled(lambda _: 0.3, copies=32)
    assert slower.copies == [0], "nothing is to be learnt from a second call"
    assert slower.calls() == 1


def test_a_sample_of_fast_calls_lasts_and_uses_the_copies_in_turn() -> None:
    fast = Sampled(lambda number: 0.008 if number == 0 else 0.001, copies=3)
    assert fast.timer.first_s == pytest.approx(0.008)
    assert fast.calls() == 10
    assert fast.copies == [index % 3 for index in range(len(fast.copies))]


def test_a_sample_fits_itself_to_what_calls_take_now() -> None:
    disturbed = Sampled(lambda number: 0.005 if number < 2 else 0.0001, copies=2)
    assert [disturbed.calls() for _ in range(2)] == [2, 100]


@needs_native
@pytest.mark.parametrize("threads", [1, 2])
def test_probes_measure_something(threads: int) -> None:
    assert library is not None
    probes = Probes.create(library, BUFFER_BYTES)
    assert 1e6 < probes.bytes_per_s(threads) < 1e14
    for int8 in (False, True):
        assert 1e6 < probes.operations_per_s(threads, int8=int8, seconds=0.002) < 1e15


def test_a_report() -> None:
    said: list[str] = []
    bench = Bench(library, BUFFER_BYTES, said.append)
    repeats = Repeats(4, 0.0, ManualClock(), least=2, most=2)
    results = [
        found
        for kernel in ("project", "rms_norm")
        for make in cases_of([kernel], [SHAPE], ["f32"], [1, 32], Rotation(BUFFER_BYTES))
        for found in bench.measure(make, [1], repeats)
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
