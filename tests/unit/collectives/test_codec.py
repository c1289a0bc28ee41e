from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.collectives.codec import decode_array, encode_array, header_of, read_array, rounded
from tpiedge.collectives.summation import F32Array, IntArray
from tpiedge.errors import Misconduct
from tpiedge.transport.endpoint import Envelope
from tpiedge.wire.data import Hidden
from tpiedge.wire.fields import INT8_GROUP, TensorHeader

SHAPES = [(0, 64), (1, 1), (1, 64), (3, 65), (2, 63), (4, 192), (5, 100)]
# Half a step, and what the rounding of scale and product adds.
HALF = 0.5 + 127 * 2.0**-22


def through(wire: Any, array: F32Array) -> F32Array:
    encoded = encode_array(wire, array)
    assert memoryview(encoded).nbytes == header_of(wire, array.shape, array.itemsize).nbytes
    return decode_array(wire, bytes(encoded), array.shape)


def normal(shape: tuple[int, ...], seed: int = 0) -> F32Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bits(array: F32Array) -> np.ndarray:
    return array.view(np.uint32)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200))
def test_f32_keeps_every_bit(values: list[int]) -> None:
    array = np.array([values], np.uint32).view(np.float32)
    assert rounded("f32", array) is array
    assert np.array_equal(bits(through("f32", array)), bits(array))


def random_bits() -> F32Array:
    seeded = np.random.default_rng(1).integers(0, 1 << 32, 1 << 16, np.uint32)
    ties = (seeded[:4096] & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    special = np.array(
        [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF, 0x7F7FFFFF, 1, 0x80000001],
        np.uint32,
    )
    found = np.concatenate([seeded, ties - np.uint32(1), ties, ties + np.uint32(1), special])
    return found.view(np.float32)[None]


def test_bf16_is_rounded_to_nearest_even() -> None:
    array = random_bits()
    got = through("bf16", array)
    expected = torch.from_numpy(array).to(torch.bfloat16).to(torch.float32).numpy()
    numbers = ~np.isnan(array)
    assert (~numbers).sum() > 100
    assert np.array_equal(bits(got)[numbers], bits(expected)[numbers])
    assert np.isnan(got[~numbers]).all()


def groups(array: F32Array) -> list[F32Array]:
    return [array[:, first : first + INT8_GROUP] for first in range(0, array.shape[1], INT8_GROUP)]


@given(
    st.integers(1, 4),
    st.integers(1, 200),
    st.integers(0, 2**32),
    st.lists(st.integers(-100, 100), min_size=4, max_size=4),
)
def test_int8_error_is_within_half_a_quantisation_step(
    rows: int, columns: int, seed: int, exponents: list[int]
) -> None:
    array = normal((rows, columns), seed)
    for part, exponent in zip(groups(array), exponents, strict=False):
        part *= np.float32(2.0**exponent)
    got = through("int8", array)
    for part, other in zip(groups(array.astype(np.float64)), groups(got), strict=True):
        step = np.abs(part).max(1, keepdims=True) / 127
        assert (np.abs(other - part) <= HALF * step).all()
        # The largest of a group is exact but for the rounding of the scale.
        largest = np.abs(other).max(1) / np.abs(part).max(1)
        assert np.allclose(largest, 1, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 63, 64, 99])
def test_non_finite_values_stay_non_finite(name: str, value: float, at: int) -> None:
    array = normal((3, 100))
    array[1, at] = value
    got = through(name, array)
    assert not np.isfinite(got[1, at])
    assert np.isfinite(got[[0, 2]]).all()


def integers(dtype: str) -> st.SearchStrategy[IntArray]:
    ends = np.iinfo(dtype)
    rows = st.lists(st.integers(int(ends.min), int(ends.max)), min_size=1, max_size=100)
    return rows.map(lambda values: np.array([values], dtype))


@given(st.one_of(integers("i4"), integers("i8")))
def test_integers_keep_every_bit_and_their_width(array: IntArray) -> None:
    got = through("i32", array)
    assert got.dtype == array.dtype
    assert np.array_equal(got, array)
    assert rounded("i32", array) is array
    header = header_of("i32", array.shape, array.itemsize)
    assert header.dtype == {4: "i32", 8: "i64"}[array.itemsize]
    assert np.array_equal(read_array(envelope(header, array.tobytes()), 3, array.shape, "i32"), array)


def envelope(header: TensorHeader | None, data: bytes) -> Envelope:
    return Envelope("node-3", Hidden(1, 1, 0, header), memoryview(data))  # type: ignore[arg-type]


@pytest.mark.parametrize("wire", ["f32", "bf16", "int8", "i32"])
@pytest.mark.parametrize(
    "header",
    [
        None,
        TensorHeader("f32", (10,)),
        TensorHeader("f32", (5, 2)),
        TensorHeader("f32", (2, 5, 1)),
        TensorHeader("u8", (2, 5)),
        TensorHeader("u8", (2, 10)),
        TensorHeader("bf16", (2, 6)),
        TensorHeader("i32", (2, 5)),
        TensorHeader("i64", (2, 5)),
        TensorHeader("i32", (5, 2)),
    ],
    ids=str,
)
def test_wrong_tensor_header_is_blamed_on_its_sender(wire: Any, header: TensorHeader | None) -> None:
    data = bytes(header.nbytes if header else 0)
    if wire == "i32" and header in (TensorHeader("i32", (2, 5)), TensorHeader("i64", (2, 5))):
        return
    with pytest.raises(Misconduct, match=r"node 3 sent .* where") as caught:
        read_array(envelope(header, data), 3, (2, 5), wire)
    assert caught.value.rank == 3
