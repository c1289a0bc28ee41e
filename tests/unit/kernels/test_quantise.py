"""Quantising and back, by numpy and by every instruction set, against a slow reading of panels.py."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tpiedge.kernels
from tests.unit.kernels.instruction_sets import AVAILABLE
from tests.unit.kernels.quantise_reference import quantise_by_numpy, wide
from tpiedge.kernels import quantise as module
from tpiedge.kernels import shared_library
from tpiedge.kernels.panels import FORMATS, GROUP, Codes, PanelShape, dequantise_unit
from tpiedge.kernels.quantise import CannotQuantise, quantise_unit
from tpiedge.native_code import find_library

Array = np.ndarray[Any, Any]

ENGINES = ["numpy", *(isa for isa in ("portable", "avx2", "avx512") if isa in AVAILABLE)]
SMALLEST_NORMAL = 2.0**-14  # of f16
F32_LARGEST = float(np.finfo(np.float32).max)


def by_engine(name: str) -> Any:
    if name == "numpy":
        return quantise_by_numpy
    path = find_library(Path(tpiedge.kernels.__path__[0]))
    if path is None:
        pytest.skip("native: the kernels are not built")
    try:
        library = shared_library.KernelLibrary(shared_library.load(path), name)
        return partial(module._native_quantise, library)
    except ValueError as error:
        pytest.skip(f"system: {error}")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    quantise = by_engine(request.param)
    monkeypatch.setattr(module, "_native_quantise", lambda _, *rest: quantise(*rest))
    return str(request.param)


def weights(outputs: int, inputs: int, dtype: str = "f32", scale: float = 0.02, seed: int = 0) -> Array:
    generator = np.random.default_rng((seed, outputs, inputs))
    values = (generator.standard_normal((outputs, inputs)) * scale).astype(np.float32)
    if dtype == "f16":
        return values.astype(np.float16)
    return (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else values


@st.composite
def units(draw: st.DrawFn, least_exponent: int = -12) -> tuple[Array, PanelShape]:
    outputs, inputs = draw(st.integers(1, 40)), draw(st.integers(1, 80))
    exponent = draw(st.integers(least_exponent, 4))
    values = weights(
        outputs, inputs, draw(st.sampled_from(["f32", "bf16"])), 10.0**exponent, draw(st.integers(0, 99))
    )
    for _ in range(draw(st.integers(0, 3))):
        row, col = draw(st.integers(0, outputs - 1)), draw(st.integers(0, inputs - 1))
        values[row, col] = draw(st.sampled_from([0, 1]))  # of bf16: the least denormal number
    return values, PanelShape(FORMATS[draw(st.sampled_from(["q4", "q8"]))], outputs, inputs)


@settings(max_examples=60)
@given(units())
def test_scale_search_never_increases_the_error(unit: tuple[Array, PanelShape]) -> None:
    values, shape = unit
    assert quantise_unit(values, shape, True)[1].noise <= quantise_unit(values, shape, False)[1].noise * (
        1 + 1e-6
    )


@settings(max_examples=60)
@given(units(least_exponent=-1), st.booleans())
def test_requantising_quantised_values_is_exact(unit: tuple[Array, PanelShape], search: bool) -> None:
    values, shape = unit
    data, _ = quantise_unit(values, shape, search)
    scales = np.abs(Codes.of_panels(data.reshape(shape.panels, -1), shape).scales_OG["s"])
    assume(not ((scales > 0) & (scales < SMALLEST_NORMAL)).any())
    found = dequantise_unit(data, shape)
    again, error = quantise_unit(found, shape, True)
    np.testing.assert_array_equal(dequantise_unit(again, shape), found)
    assert error.noise == 0
    if not search or shape.format.bits == 8:
        np.testing.assert_array_equal(quantise_unit(found, shape, search)[0], data)


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_gguf_blocks_are_quantised_without_error(engine: str, bits: int, search: bool) -> None:
    generator = np.random.default_rng(bits)
    outputs, inputs = 48, 96
    least, greatest = (-127, 127) if bits == 8 else (-8, 7)
    codes = generator.integers(least, greatest + 1, (outputs, inputs // GROUP, GROUP))
    codes[:, :, 5] = least
    scales = generator.uniform(2.0**-14, 1, codes.shape[:2]).astype(np.float16).astype(np.float32)
    if bits == 4:
        scales *= generator.choice([-1, 1], scales.shape)
    values = (scales[:, :, None] * codes).astype(np.float32).reshape(outputs, inputs)
    shape = PanelShape(FORMATS[f"q{bits}"], outputs, inputs)
    data, error = quantise_unit(values, shape, search)
    assert error.noise == 0
    np.testing.assert_array_equal(dequantise_unit(data, shape), values)


@pytest.mark.parametrize("name", ENGINES[1:])
@settings(max_examples=60)
@given(units(), st.sampled_from(["f32", "bf16", "f16"]), st.booleans())
def test_native_quantisation_equals_numpy(
    name: str, unit: tuple[Array, PanelShape], dtype: str, search: bool
) -> None:
    values, shape = unit
    if dtype == "f16":
        values = np.clip(wide(values), -60000, 60000).astype(np.float16)
    first, second = (np.full(shape.nbytes, fill, np.uint8) for fill in (1, 2))
    expected = by_engine("numpy")(values, shape, search, first)
    found = by_engine(name)(values, shape, search, second)
    np.testing.assert_array_equal(second, first)
    assert found.noise == pytest.approx(expected.noise, rel=1e-5)
    assert found.signal == pytest.approx(expected.signal, rel=1e-5)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (np.nan, "not a finite number"),
        (-np.inf, "not a finite number"),
        (-F32_LARGEST, r"of 3\.4e\+38, too large"),
    ],
)
@pytest.mark.parametrize("bits", [4, 8])
def test_unquantisable_values_are_refused(engine: str, bits: int, wrong: float, reason: str) -> None:
    values = weights(40, 70)
    values[37, 3] = np.nan
    values[21, 68] = wrong
    with pytest.raises(CannotQuantise, match=reason) as caught:
        quantise_unit(values, PanelShape(FORMATS[f"q{bits}"], 40, 70))
    assert caught.value.output == 21


def test_quantising_needs_no_torch() -> None:
    program = (
        "import sys, tpiedge.kernels.quantise as q; q.kernel_library(); sys.exit('torch' in sys.modules)"
    )
    root = str(Path(tpiedge.kernels.__path__[0]).parents[1])
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True)
