import time

import pytest

from tests.contract.networks import Network
from tests.contract.test_endpoint import meet, receive
from tpiedge.errors import ProtocolError
from tpiedge.transport.endpoint import CONTROL, FILES, TENSOR, Endpoint, LinkReset, MalformedMessage, Plane
from tpiedge.wire.codec import encode
from tpiedge.wire.data import FileChunk, Hidden
from tpiedge.wire.fields import MAX_FILE_CHUNK, MAX_TENSOR_BYTES, Message, TensorHeader

WAIT_S = 20.0


def hidden(nbytes: int) -> Hidden:
    return Hidden(1, 1, 0, TensorHeader("u8", (nbytes,)))


def chunk(nbytes: int) -> FileChunk:
    return FileChunk(1, 1, nbytes, TensorHeader("u8", (nbytes,)))


@pytest.mark.parametrize("nbytes", [MAX_TENSOR_BYTES + 1, 2 * MAX_TENSOR_BYTES, 1 << 31])
@pytest.mark.fault("W3", "refused before it is sent")
def test_tensor_above_the_limit_is_refused_by_both_sides(network: Network, nbytes: int) -> None:
    hub, spoke = network.hub(), network.spoke()
    meet(hub, spoke)
    with pytest.raises(ProtocolError, match=f"{nbytes} bytes; a message holds at most {MAX_TENSOR_BYTES}"):
        spoke.send(hidden(nbytes), bytes(4))
    assert hub.recv(0.0) is None
    # From a sender that keeps no rules.
    spoke.send_frame(encode(hidden(nbytes)) + bytes(4))  # type: ignore[attr-defined]
    with pytest.raises(MalformedMessage, match=f"{nbytes} bytes; a message holds at most {MAX_TENSOR_BYTES}"):
        hub.recv(WAIT_S)


@pytest.mark.parametrize("plane", [TENSOR, FILES], ids=["tensor", "files"])
@pytest.mark.fault("W3", "passes")
def test_message_of_exactly_the_size_limit_is_delivered(network: Network, plane: Plane) -> None:
    hub, spoke = network.hub(plane), network.spoke(plane=plane)
    message: Message = hidden(MAX_TENSOR_BYTES) if plane is TENSOR else chunk(MAX_FILE_CHUNK)
    spoke.send(message, bytes(plane.tensor_limit), timeout_s=WAIT_S)
    envelope = receive(hub)
    assert envelope.message == message
    assert len(envelope.tensor or b"") == plane.tensor_limit


def serve_both(hub: Endpoint, spoke: Endpoint) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        spoke.recv(0.0)
        hub.recv(0.01)


@pytest.mark.parametrize("network", ["zeromq", "zeromq in Python"], indirect=True)
@pytest.mark.parametrize("plane", [CONTROL, TENSOR, FILES], ids=["control", "tensor", "files"])
@pytest.mark.fault("W3", "sent all the same: the connection breaks, and is made anew")
def test_frame_above_libzmq_limit_resets_the_link(network: Network, plane: Plane) -> None:
    hub, spoke = network.hub(plane), network.spoke(plane=plane)
    meet(hub, spoke)
    spoke.send_frame(bytes(2 * plane.frame_limit))  # type: ignore[attr-defined]
    with pytest.raises(LinkReset, match=r"broke and was made anew$"):
        serve_both(hub, spoke)
