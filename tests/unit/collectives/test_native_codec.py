from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.collectives import codec
from tpiedge.collectives.codec import decode_array, encode_array, header_of
from tpiedge.collectives.summation import F32Array
from tpiedge.transport.native_library import packing_library

pytestmark = pytest.mark.skipif(packing_library() is None, reason="native: the transport is not built")

SHAPES = [(0, 64), (4, 0), (1, 1), (3, 63), (3, 64), (3, 65), (2, 130), (5, 4096), (64, 33)]
NAMES = ["bf16", "int8"]


def in_python(call: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "packing_library", lambda: None)
        return call()


def check(name: Any, array: F32Array) -> None:
    expected = in_python(lambda: encode_array(name, array))
    assert bytes(encode_array(name, array)) == bytes(expected)
    unpacked = decode_array(name, expected, array.shape)
    decoded = in_python(lambda: decode_array(name, expected, array.shape))
    assert np.array_equal(unpacked.view(np.uint32), decoded.view(np.uint32))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("columns", [1, 7, 64, 65, 1000])
def test_native_codec_matches_python_on_random_bits(name: Any, columns: int) -> None:
    random = np.random.default_rng(columns)
    bits = random.integers(0, 1 << 32, (200, columns), np.uint32)
    check(name, bits.view(np.float32))
    exponent = np.uint32(0x7F800000)
    check(name, np.where((bits & exponent) == exponent, bits & ~exponent, bits).view(np.float32))
    check(name, (bits & ~exponent).view(np.float32))


@given(st.binary(min_size=2 * (100 + 8), max_size=2 * (100 + 8)))
def test_native_int8_decode_matches_python_on_any_bytes(data: bytes) -> None:
    unpacked = decode_array("int8", data, (2, 100))
    decoded = in_python(lambda: decode_array("int8", data, (2, 100)))
    assert np.array_equal(unpacked, decoded, equal_nan=True)


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_bytes_need_not_be_aligned(name: Any, offset: int) -> None:
    array = np.random.default_rng(3).standard_normal((3, 70)).astype(np.float32)
    packed = bytes(encode_array(name, array))
    shifted = memoryview(bytes(offset) + packed)[offset:]
    assert np.array_equal(decode_array(name, shifted, array.shape), decode_array(name, packed, array.shape))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("difference", [-1, 1])
def test_wrong_byte_counts_are_refused(name: Any, difference: int) -> None:
    count = header_of(name, (2, 70)).nbytes + difference
    with pytest.raises(ValueError, match=f"{count} bytes"):
        decode_array(name, bytes(count), (2, 70))
