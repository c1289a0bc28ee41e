"""How matrices travel: what rounding keeps, what it may change, and what it must never do."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.collectives.arrays import F32Array, IntArray
from tpiedge.collectives.codec import CODECS, INTEGERS, Codec, read_array, rounded
from tpiedge.errors import Misconduct
from tpiedge.transport.endpoint import Envelope
from tpiedge.wire.data import Hidden
from tpiedge.wire.tensors import INT8_GROUP, TensorHeader

SHAPES = [(0, 64), (1, 1), (1, 64), (3, 65), (2, 63), (4, 192), (5, 100)]
# Half a step, and what the rounding of scale and product adds.
HALF = 0.5 + 127 * 2.0**-22
SMALLEST_SCALE = 2.0**-126


def through(codec: Codec, array: F32Array) -> F32Array:
    """What others get of `array`."""
    encoded = codec.encode(array)
    assert memoryview(encoded).nbytes == codec.header(array).nbytes
    return codec.decode(bytes(encoded), array.shape)


def normal(shape: tuple[int, ...], seed: int = 0) -> F32Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bits(array: F32Array) -> np.ndarray:
    return array.view(np.uint32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CODECS)
def test_shapes_and_names(name: str, shape: tuple[int, int]) -> None:
    codec = CODECS[name]
    got = through(codec, normal(shape))
    assert codec.name == name
    assert got.shape == shape
    assert got.dtype == np.float32


@pytest.mark.parametrize("name", CODECS)
def test_the_matrix_stays_as_it_is(name: str) -> None:
    array = normal((3, 70))
    CODECS[name].encode(array)
    assert np.array_equal(array, normal((3, 70)))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200))
def test_f32_keeps_every_bit(values: list[int]) -> None:
    array = np.array([values], np.uint32).view(np.float32)
    assert CODECS["f32"].exact
    assert np.array_equal(bits(through(CODECS["f32"], array)), bits(array))


def random_bits() -> F32Array:
    """Of all signs and exponents: NaN, infinities and denormals among them; and what lies around every tie."""
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
    got = through(CODECS["bf16"], array)
    expected = torch.from_numpy(array).to(torch.bfloat16).to(torch.float32).numpy()
    numbers = ~np.isnan(array)
    assert (~numbers).sum() > 100
    assert np.array_equal(bits(got)[numbers], bits(expected)[numbers])
    assert np.isnan(got[~numbers]).all()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=100))
def test_what_bf16_holds_is_exact(values: list[int]) -> None:
    array = (np.array([values], np.uint32) << np.uint32(16)).view(np.float32)
    got = through(CODECS["bf16"], array)
    numbers = ~np.isnan(array)
    assert np.array_equal(bits(got)[numbers], bits(array)[numbers])
    assert np.isnan(got[~numbers]).all()


def groups(array: F32Array) -> list[F32Array]:
    return [array[:, first : first + INT8_GROUP] for first in range(0, array.shape[1], INT8_GROUP)]


@given(
    st.integers(1, 4),
    st.integers(1, 200),
    st.integers(0, 2**32),
    st.lists(st.integers(-100, 100), min_size=4, max_size=4),
)
def test_int8_is_within_half_a_step_of_its_group(
    rows: int, columns: int, seed: int, exponents: list[int]
) -> None:
    array = normal((rows, columns), seed)
    for part, exponent in zip(groups(array), exponents, strict=False):
        part *= np.float32(2.0**exponent)
    got = through(CODECS["int8"], array)
    for part, other in zip(groups(array.astype(np.float64)), groups(got), strict=True):
        step = np.abs(part).max(1, keepdims=True) / 127
        assert (np.abs(other - part) <= HALF * step).all()
        # The largest of a group is exact but for the rounding of the scale.
        largest = np.abs(other).max(1) / np.abs(part).max(1)
        assert np.allclose(largest, 1, rtol=1e-6, atol=0)


def test_int8_uses_all_of_its_range() -> None:
    """Otherwise the bound above would be missed only by luck."""
    array = np.linspace(-3, 3, INT8_GROUP, dtype=np.float32)[None]
    codes = np.frombuffer(CODECS["int8"].encode(array), np.int8)[:INT8_GROUP]
    assert (codes.min(), codes.max()) == (-127, 127)
    assert len(set(codes.tolist())) == INT8_GROUP


def test_what_int8_holds_is_exact() -> None:
    array = np.random.default_rng(2).integers(-126, 127, (3, 150)).astype(np.float32)
    array[:, ::INT8_GROUP] = -127
    for scale in (1.0, 2.0**-20, 3.0, 2.0**40):
        scaled = array * np.float32(scale)
        assert np.array_equal(through(CODECS["int8"], scaled), scaled)


def test_int8_of_zeros_and_of_next_to_nothing() -> None:
    array = np.zeros((2, 130), np.float32)
    array[0, 70] = 1e-45
    assert np.abs(through(CODECS["int8"], array)).max() <= 1e-45
    assert not np.signbit(through(CODECS["int8"], np.zeros((2, 130), np.float32))).any()


@given(st.integers(0, 2**32 - 1), st.floats(2.0**-149, 2.0**-118, width=32))
def test_int8_of_denormals_is_no_larger_than_they_are(seed: int, size: float) -> None:
    """Where a scale has few bits left the steps are coarse, and nothing grows or turns into a NaN."""
    array = normal((1, INT8_GROUP), seed) * np.float32(size)
    got = through(CODECS["int8"], array)
    assert np.isfinite(got).all()
    assert np.abs(got).max() <= np.abs(array).max() * 1.5 + SMALLEST_SCALE


@pytest.mark.parametrize("name", ["bf16", "int8"])
@pytest.mark.parametrize("columns", [64, 65, 192, 7])
def test_rows_are_rounded_independently(name: str, columns: int) -> None:
    array = normal((5, columns)) * np.float32(10) ** np.arange(5, dtype=np.float32)[:, None]
    together = through(CODECS[name], array)
    alone = np.concatenate([through(CODECS[name], array[row : row + 1]) for row in range(5)])
    assert np.array_equal(together, alone)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 63, 64, 99])
def test_a_value_that_is_not_finite_stays_so(name: str, value: float, at: int) -> None:
    array = normal((3, 100))
    array[1, at] = value
    got = through(CODECS[name], array)
    assert not np.isfinite(got[1, at])
    assert np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize("name", CODECS)
def test_the_largest_number_stays_finite_or_becomes_infinite(name: str) -> None:
    largest = np.full((1, 64), np.finfo(np.float32).max, np.float32)
    got = through(CODECS[name], largest)
    assert np.isposinf(got).all() or np.allclose(got, largest, rtol=1e-6)


def integers(dtype: str) -> st.SearchStrategy[IntArray]:
    ends = np.iinfo(dtype)
    rows = st.lists(st.integers(int(ends.min), int(ends.max)), min_size=1, max_size=100)
    return rows.map(lambda values: np.array([values], dtype))


@given(st.one_of(integers("i4"), integers("i8")))
def test_integers_keep_every_bit_and_their_width(array: IntArray) -> None:
    got = through(INTEGERS, array)
    assert got.dtype == array.dtype
    assert np.array_equal(got, array)
    assert INTEGERS.exact
    assert rounded(INTEGERS, array) is array
    header = INTEGERS.header(array)
    assert header.dtype == {4: "i32", 8: "i64"}[array.itemsize]
    assert np.array_equal(read_array(envelope(header, array.tobytes()), 3, array.shape, INTEGERS), array)


@pytest.mark.parametrize("shape", SHAPES)
def test_matrices_of_integers(shape: tuple[int, int]) -> None:
    for dtype in (np.int32, np.int64):
        array = np.arange(shape[0] * shape[1], dtype=dtype).reshape(shape)
        assert np.array_equal(through(INTEGERS, array), array)
        assert INTEGERS.accepts(INTEGERS.header(array), shape)


@pytest.mark.parametrize(
    "header",
    [None, *(TensorHeader(dtype, (2, 5)) for dtype in ("f32", "bf16", "u8")), TensorHeader("i32", (5, 2))],
    ids=str,
)
def test_another_header_than_of_integers_is_its_senders_fault(header: TensorHeader | None) -> None:
    data = bytes(header.nbytes if header else 0)
    with pytest.raises(Misconduct, match=r"node 3 sent .* where an i32 or i64 tensor of shape \(2, 5\)"):
        read_array(envelope(header, data), 3, (2, 5), INTEGERS)


def envelope(header: TensorHeader | None, data: bytes) -> Envelope:
    return Envelope("node-3", Hidden(1, 1, 0, header), (memoryview(data),))  # type: ignore[arg-type]


def test_a_tensor_is_read_as_its_header_says() -> None:
    array = normal((2, 5))
    for codec in (CODECS["f32"], CODECS["bf16"]):
        encoded = bytes(codec.encode(array))
        got = read_array(envelope(codec.header(array), encoded), 3, None, None)
        assert np.array_equal(got, through(codec, array))


@pytest.mark.parametrize("name", CODECS)
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
    ],
    ids=str,
)
def test_another_header_is_its_senders_fault(name: str, header: TensorHeader | None) -> None:
    data = bytes(header.nbytes if header else 0)
    with pytest.raises(Misconduct, match=r"node 3 sent .* where") as caught:
        read_array(envelope(header, data), 3, (2, 5), CODECS[name])
    assert caught.value.rank == 3
