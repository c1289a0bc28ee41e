import pytest

from tpiedge.errors import ProtocolError
from tpiedge.transport.endpoint import FILES, TENSOR, Plane, frame_of
from tpiedge.wire.control import Shutdown
from tpiedge.wire.data import Hidden
from tpiedge.wire.fields import MAX_FILE_CHUNK, Message, TensorHeader


def hidden(*shape: int) -> Hidden:
    return Hidden(1, 1, 0, TensorHeader("f32", shape))


@pytest.mark.parametrize(
    ("message", "tensor", "plane", "cause"),
    [
        (Shutdown(1), bytes(4), TENSOR, "a tensor without its header"),
        (hidden(1), None, TENSOR, "a tensor header without"),
        (hidden(1), bytes(8), TENSOR, "8 bytes where"),
        (hidden(*[2**32 - 1] * 4), b"", TENSOR, "at most"),
        (hidden(MAX_FILE_CHUNK // 4 + 1), bytes(MAX_FILE_CHUNK + 4), FILES, "at most"),
    ],
)
def test_frames_with_a_wrong_tensor_are_refused(
    message: Message, tensor: bytes | None, plane: Plane, cause: str
) -> None:
    with pytest.raises(ProtocolError, match=cause):
        frame_of(message, tensor, plane)
