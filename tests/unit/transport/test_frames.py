"""A message and its tensor, before they become a frame."""

import pytest

from tpiedge.errors import ProtocolError
from tpiedge.transport.endpoint import FILES, TENSOR, Plane, frame_of
from tpiedge.wire.control import Shutdown
from tpiedge.wire.data import Hidden
from tpiedge.wire.fields import MAX_FILE_CHUNK, Message, TensorHeader


def hidden(*shape: int) -> Hidden:
    return Hidden(1, 1, 0, TensorHeader("f32", shape))


@pytest.mark.parametrize(
    ("message", "tensors", "plane", "cause"),
    [
        (Shutdown(1), [bytes(4)], TENSOR, "1 tensors for 0"),
        (hidden(1), [], TENSOR, "0 tensors for 1"),
        (hidden(1), [bytes(8)], TENSOR, "8 bytes where"),
        (hidden(*[2**32 - 1] * 4), [b""], TENSOR, "at most"),
        (hidden(MAX_FILE_CHUNK // 4 + 1), [bytes(MAX_FILE_CHUNK + 4)], FILES, "at most"),
    ],
)
def test_others_are_refused(message: Message, tensors: list[bytes], plane: Plane, cause: str) -> None:
    with pytest.raises(ProtocolError, match=cause):
        frame_of(message, tensors, plane)
