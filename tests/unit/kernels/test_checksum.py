import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.kernels import shared_library
from tpiedge.kernels.shared_library import crc32

DATA = bytes((37 * index + (index >> 7)) % 251 for index in range(5000))


@pytest.mark.parametrize("length", [*range(140), 255, 256, 257, 4095, 4096, 4097])
@pytest.mark.parametrize("start", [0, 1, 15])
def test_crc32_is_correct_for_any_length_and_alignment(length: int, start: int) -> None:
    data = memoryview(DATA)[start : start + length]
    assert crc32(data) == zlib.crc32(data)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_crc32_continues_over_several_buffers(first: bytes, second: bytes) -> None:
    assert crc32(memoryview(second), crc32(memoryview(first))) == zlib.crc32(first + second)


def test_crc32_works_without_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_library, "kernel_library", lambda: None)
    assert crc32(memoryview(DATA)) == zlib.crc32(DATA)
    assert crc32(memoryview(DATA), 77) == zlib.crc32(DATA, 77)
