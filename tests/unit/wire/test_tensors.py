"""Tensors and their headers."""

import pytest

from tpiedge.errors import ProtocolError
from tpiedge.wire.tensors import TensorHeader, check_tensors


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
