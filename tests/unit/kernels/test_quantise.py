"""Quantising and back, by numpy and by every instruction set, against a slow reading of panels.py."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tpiedge.kernels
from tests.unit.kernels.instruction_sets import AVAILABLE
from tpiedge.kernels import quantise as module
from tpiedge.kernels import shared_library
from tpiedge.kernels.panels import GROUP, OFFSETS, PANEL, PanelShape, split_panels
from tpiedge.kernels.quantise import CannotQuantise, QuantisationError, dequantise_unit, quantise_unit
from tpiedge.native_code import find_library

Array = np.ndarray[Any, Any]

ENGINES = ["numpy", *(isa for isa in ("portable", "avx2", "avx512") if isa in AVAILABLE)]
# Heads of 100, a tile of which half is missing, one number, one panel, more panels.
SHAPES = [(1, 1), (100, 100), (64, 68), (16, 32), (17, 31), (40, 129), (3, 4), (33, 8)]
SMALLEST_NORMAL = 2.0**-14  # of f16
F32_LARGEST = float(np.finfo(np.float32).max)


def by_engine(name: str) -> Any:
    """The function that the module would use."""
    if name == "numpy":
        return module._quantise
    path = find_library(Path(tpiedge.kernels.__path__[0]))
    if path is None:
        pytest.skip("native: the kernels are not built")
    try:
        return module._Native(shared_library.KernelLibrary(shared_library.load(path), name))
    except ValueError as error:
        pytest.skip(f"system: {error}")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All of the module goes this way."""
    quantise = by_engine(request.param)
    monkeypatch.setattr(module, "_native_quantise", lambda: quantise)
    return str(request.param)


def weights(outputs: int, inputs: int, dtype: str = "f32", scale: float = 0.02, seed: int = 0) -> Array:
    generator = np.random.default_rng((seed, outputs, inputs))
    values = (generator.standard_normal((outputs, inputs)) * scale).astype(np.float32)
    if dtype == "f16":
        return values.astype(np.float16)
    return (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else values


def wide(values: Array) -> Array:
    return (
        (values.astype(np.uint32) << 16).view(np.float32)
        if values.dtype == np.uint16
        else values.astype(np.float32)
    )


def place_of_scale(shape: PanelShape, output: int, group: int) -> int:
    """Read off panels.py, byte by byte; so is `place_of_code`."""
    return place_of_pair(shape, output, group // 2) + group % 2 * 32 + output % 16 * 2


def place_of_pair(shape: PanelShape, output: int, pair: int) -> int:
    code_bytes = -(-shape.inputs // 8) * 8 * 16 * shape.bits // 8
    panel_bytes = -(-shape.inputs // 64) * 64 + code_bytes
    return output // 16 * panel_bytes + pair * (64 + 64 * 16 * shape.bits // 8)


def place_of_code(shape: PanelShape, output: int, i: int) -> tuple[int, int]:
    """(byte, lowest bit)."""
    codes, r = place_of_pair(shape, output, i // 64) + 64 + 4 * (output % 16), i % 64
    if shape.bits == 8:
        return codes + r // 4 * 64 + r % 4, 0
    return codes + r // 8 * 64 + r % 4, 4 if i % 8 >= 4 else 0


def slowly(data: Array, shape: PanelShape) -> Array:
    """dequantise_unit, a weight at a time."""
    found = np.empty((shape.outputs, shape.inputs), np.float32)
    for output in range(shape.outputs):
        for i in range(shape.inputs):
            at, shift = place_of_code(shape, output, i)
            code = int(data[at]) >> shift & (255 if shape.bits == 8 else 15)
            place = place_of_scale(shape, output, i // 32)
            scale = np.float32(data[place : place + 2].view("<f2")[0])
            found[output, i] = scale * np.float32(code - OFFSETS[shape.bits])
    return found


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_the_format_is_that_of_panels(engine: str, outputs: int, inputs: int, bits: int) -> None:
    shape = PanelShape(bits, outputs, inputs)
    values = weights(outputs, inputs)
    data, error = quantise_unit(values, shape, out=np.full(shape.nbytes, 0xA5, np.uint8))
    found = slowly(data, shape)
    np.testing.assert_array_equal(dequantise_unit(data, shape), found)
    noise = float(np.square((found - values).astype(np.float64)).sum())
    signal = float(np.square(values.astype(np.float64)).sum())
    assert error.noise == pytest.approx(noise, rel=1e-4, abs=1e-12)
    assert error.signal == pytest.approx(signal, rel=1e-4)
    if inputs > 8:
        assert error.sqnr_db > (20 if bits == 4 else 43)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_what_is_no_weight_is_zero(engine: str, outputs: int, inputs: int, bits: int) -> None:
    shape = PanelShape(bits, outputs, inputs)
    data, _ = quantise_unit(weights(outputs, inputs), shape, out=np.full(shape.nbytes, 0xA5, np.uint8))
    for output in range(outputs):
        for group in range(shape.groups):
            place = place_of_scale(shape, output, group)
            data[place : place + 2] = 0
        for i in range(inputs):
            at, shift = place_of_code(shape, output, i)
            data[at] &= 0 if bits == 8 else 0xF0 >> shift
    assert not data.any()


@st.composite
def units(draw: st.DrawFn, least_exponent: int = -12) -> tuple[Array, PanelShape]:
    """Weights of every size that a scale in f16 can have, and of some that it cannot tell from zero."""
    outputs, inputs = draw(st.integers(1, 40)), draw(st.integers(1, 80))
    exponent = draw(st.integers(least_exponent, 4))
    values = weights(
        outputs, inputs, draw(st.sampled_from(["f32", "bf16"])), 10.0**exponent, draw(st.integers(0, 99))
    )
    for _ in range(draw(st.integers(0, 3))):
        row, col = draw(st.integers(0, outputs - 1)), draw(st.integers(0, inputs - 1))
        values[row, col] = draw(st.sampled_from([0, 1]))  # of bf16: the least denormal number
    return values, PanelShape(draw(st.sampled_from([4, 8])), outputs, inputs)


@settings(max_examples=60)
@given(units(), st.booleans())
def test_within_half_a_step(unit: tuple[Array, PanelShape], search: bool) -> None:
    values, shape = unit
    data, _ = quantise_unit(values, shape, search)
    found = dequantise_unit(data, shape)
    panels = data.reshape(shape.panels, shape.panel_nbytes)
    scales = split_panels(panels, shape)[0].astype(np.float32).transpose(0, 2, 1).reshape(-1, shape.groups)
    step = np.repeat(scales, GROUP, axis=1)[: shape.outputs, : shape.inputs]
    if shape.bits == 8:
        reached = np.clip(wide(values), -127 * step, 127 * step)
    else:
        reached = np.clip(wide(values), np.minimum(-8 * step, 7 * step), np.maximum(-8 * step, 7 * step))
    assert (np.abs(found - reached) <= np.abs(step) * np.float32(0.5001)).all()
    if shape.bits == 8:  # beyond that is only what rounding the scale to f16 takes
        assert (
            np.abs(reached - wide(values)) <= np.abs(values_of_groups(values)) * 2.0**-10 + 2.0**-18
        ).all()


def values_of_groups(values: Array) -> Array:
    """The largest magnitude of each weight's group."""
    found = np.abs(wide(values))
    for start in range(0, found.shape[1], GROUP):
        part = found[:, start : start + GROUP]
        part[:] = part.max(1, keepdims=True)
    return found


@settings(max_examples=60)
@given(units())
def test_a_search_never_adds_to_the_error(unit: tuple[Array, PanelShape]) -> None:
    values, shape = unit
    assert quantise_unit(values, shape, True)[1].noise <= quantise_unit(values, shape, False)[1].noise * (
        1 + 1e-6
    )


@settings(max_examples=60)
@given(units(least_exponent=-1), st.booleans())
def test_what_was_quantised_comes_back_as_it_was(unit: tuple[Array, PanelShape], search: bool) -> None:
    values, shape = unit
    data, _ = quantise_unit(values, shape, search)
    scales = np.abs(split_panels(data.reshape(shape.panels, -1), shape)[0])
    assume(not ((scales > 0) & (scales < SMALLEST_NORMAL)).any())
    found = dequantise_unit(data, shape)
    again, error = quantise_unit(found, shape, True)
    np.testing.assert_array_equal(dequantise_unit(again, shape), found)
    assert error.noise == 0
    if not search or shape.bits == 8:
        np.testing.assert_array_equal(quantise_unit(found, shape, search)[0], data)


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_as_of_gguf_keep_their_codes(engine: str, bits: int, search: bool) -> None:
    """Any codes, of which one reaches the end of its range, and any scale, of either sign for 4 bits."""
    generator = np.random.default_rng(bits)
    outputs, inputs = 48, 96
    least, greatest = (-127, 127) if bits == 8 else (-8, 7)
    codes = generator.integers(least, greatest + 1, (outputs, inputs // GROUP, GROUP))
    codes[:, :, 5] = least
    scales = generator.uniform(2.0**-14, 1, codes.shape[:2]).astype(np.float16).astype(np.float32)
    if bits == 4:
        scales *= generator.choice([-1, 1], scales.shape)
    values = (scales[:, :, None] * codes).astype(np.float32).reshape(outputs, inputs)
    shape = PanelShape(bits, outputs, inputs)
    data, error = quantise_unit(values, shape, search)
    assert error.noise == 0
    for output, i in [(0, 0), (47, 95), (20, 37), (33, 64), (5, 31)]:
        at, shift = place_of_code(shape, output, i)
        code = int(data[at]) >> shift & (255 if bits == 8 else 15)
        assert code - OFFSETS[bits] == codes[output, i // GROUP, i % GROUP]


@pytest.mark.parametrize("name", ENGINES[1:])
@settings(max_examples=60)
@given(units(), st.sampled_from(["f32", "bf16", "f16"]), st.booleans())
def test_native_code_gives_the_bytes_of_numpy(
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


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_every_f16_and_its_neighbours(engine: str, dtype: str) -> None:
    """Scales are the amounts themselves: of 127 times each number of f16, and of what lies between two of them."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16)
    values: Array
    if dtype == "f16":
        values = halves[:, None]
    else:
        exact = halves.astype(np.float32)
        between = (exact[:-1] + exact[1:]) / 2
        near = np.concatenate(
            [exact, between, np.nextafter(between, 0), np.nextafter(between, np.float32(1e9))]
        )
        values = (near * np.float32(127))[:, None]
    shape = PanelShape(8, len(values), 1)
    data, _ = quantise_unit(values, shape)
    found = data.reshape(shape.panels, -1)[:, :32].copy().view("<f2").reshape(-1)[: len(values)]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            found, (values[:, 0].astype(np.float32) / np.float32(127)).astype(np.float16)
        )


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (np.nan, "not a finite number"),
        (-np.inf, "not a finite number"),
        (-F32_LARGEST, r"of 3\.4e\+38, too large"),
    ],
)
@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_that_cannot_be_quantised(engine: str, bits: int, wrong: float, reason: str) -> None:
    values = weights(40, 70)
    values[37, 3] = np.nan
    values[21, 68] = wrong
    with pytest.raises(CannotQuantise, match=reason) as caught:
        quantise_unit(values, PanelShape(bits, 40, 70))
    assert caught.value.output == 21


@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_weights(engine: str, bits: int) -> None:
    """65504 is the largest f16; 65519 still rounds to it."""
    reach = np.float32(127 if bits == 8 else 8)
    shape = PanelShape(bits, 1, 1)
    data, _ = quantise_unit(np.full((1, 1), 65519 * reach, np.float32), shape)
    assert dequantise_unit(data, shape)[0, 0] == 65504 * reach
    with pytest.raises(CannotQuantise, match="too large for a scale in f16"):
        quantise_unit(np.full((1, 1), 65520 * reach, np.float32), shape)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("bits", [4, 8])
def test_strided_rows_and_single_panels_make_no_difference(engine: str, bits: int, dtype: str) -> None:
    around = weights(40, 300, dtype)
    values = around[:, 100:233]
    shape = PanelShape(bits, 40, 133)
    whole, error = quantise_unit(np.ascontiguousarray(values), shape)
    strided, _ = quantise_unit(values, shape)
    np.testing.assert_array_equal(strided, whole)
    backwards, _ = quantise_unit(values[:, ::-1][:, ::-1].copy(order="F"), shape)
    np.testing.assert_array_equal(backwards, whole)
    alone = QuantisationError()
    for panel in range(shape.panels):
        outputs = min(PANEL, 40 - panel * PANEL)
        part, of_part = quantise_unit(values[panel * PANEL :][:outputs], PanelShape(bits, outputs, 133))
        np.testing.assert_array_equal(part, whole[panel * shape.panel_nbytes :][: len(part)])
        alone += of_part
    assert alone.noise == pytest.approx(error.noise, rel=1e-6)


def test_a_unit_larger_than_numpy_takes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values, shape = weights(50, 300), PanelShape(4, 50, 300)
    whole = np.empty(shape.nbytes, np.uint8)
    expected = module._quantise(values, shape, True, whole)
    for at_once in (1, 3 * PANEL * GROUP, 12 * PANEL * GROUP):
        monkeypatch.setattr(module, "_WEIGHTS_AT_ONCE", at_once)
        parts = np.empty(shape.nbytes, np.uint8)
        found = module._quantise(values, shape, True, parts)
        np.testing.assert_array_equal(parts, whole)
        assert found is not None
        assert expected is not None
        assert found.noise == pytest.approx(expected.noise)


def test_ratios() -> None:
    assert QuantisationError(100, 1).sqnr_db == pytest.approx(20)
    assert QuantisationError(0, 0).sqnr_db == math.inf
    assert (QuantisationError(1, 2) + QuantisationError(3, 4)) == QuantisationError(4, 6)


def test_wrong_arrays_are_refused() -> None:
    shape = PanelShape(4, 4, 8)
    for values in (np.zeros((4, 7), np.float32), np.zeros((4, 8)), np.zeros((4, 8), np.int32)):
        with pytest.raises(ValueError, match="for 4 x 8 weights"):
            quantise_unit(values, shape)
    for out in (np.zeros(shape.nbytes - 1, np.uint8), np.zeros(2 * shape.nbytes, np.uint8)[::2]):
        with pytest.raises(ValueError, match="for panels of"):
            quantise_unit(np.zeros((4, 8), np.float32), shape, out=out)


def test_quantising_needs_no_torch() -> None:
    program = (
        "import sys, tpiedge.kernels.quantise as q; q._native_quantise(); sys.exit('torch' in sys.modules)"
    )
    root = str(Path(tpiedge.kernels.__path__[0]).parents[1])
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True)
