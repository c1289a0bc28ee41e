"""Tensors and their headers."""

import pytest

from tpiedge.errors import ProtocolError
from tpiedge.wire.tensors import TensorHeader, check_tensors


def test_sizes() -> None:
    assert TensorHeader("f32", (3, 5)).nbytes == 60
    assert TensorHeader("bf16", (3, 5)).nbytes == 30
    assert TensorHeader("i32", (3, 5)).nbytes == 60
    assert TensorHeader("i64", (3, 5)).nbytes == 120
    assert TensorHeader("f32", (0, 5)).nbytes == 0
    assert TensorHeader("f32", ()).nbytes == 4


def test_matching_sizes_pass() -> None:
    check_tensors([], [])
    check_tensors([TensorHeader("f32", (2, 2)), TensorHeader("bf16", (0,))], [16, 0])


@pytest.mark.parametrize(
    ("headers", "sizes", "cause"),
    [
        ([], [4], "1 tensors for 0"),
        ([TensorHeader("f32", (1,))], [], "0 tensors for 1"),
        ([TensorHeader("f32", (1,))], [8], "8 bytes where"),
        ([TensorHeader("f32", (2**32 - 1,) * 4)], [0], "at most"),
        ([TensorHeader("f32", (2**24 + 1,))], [2**26 + 4], "at most"),
    ],
)
def test_others_are_refused(headers: list[TensorHeader], sizes: list[int], cause: str) -> None:
    with pytest.raises(ProtocolError, match=cause):
        check_tensors(headers, sizes)
