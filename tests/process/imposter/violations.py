"""What an authorised node or agent may send, above all in the middle of an all-reduce, and what is said of it."""

import contextlib
from collections.abc import Callable
from typing import TypeAlias

import zmq

from tests.process.imposter.imposter import Mischief, Node
from tpiedge.transport.framing import TENSOR
from tpiedge.transport.zeromq import ZmqSpoke
from tpiedge.wire.codec import encode
from tpiedge.wire.control import Listening, Shutdown
from tpiedge.wire.data import Reduced, Slice, Survey
from tpiedge.wire.epochs import AgentPulse, Launch
from tpiedge.wire.flat import FLAT_BYTES
from tpiedge.wire.limits import MAX_CONTROL_HEADER, MAX_TENSOR_BYTES
from tpiedge.wire.tensors import TensorHeader

_FLOOD_MESSAGES = 30_000

OnLink: TypeAlias = Callable[[ZmqSpoke], None]


def _truncated(node: Node) -> None:
    node.raw(encode(node.partial())[: FLAT_BYTES - 1])


def _announcing(node: Node) -> None:
    """A header of a tensor of 2 GiB, and 16 bytes of it."""
    node.raw(encode(node.partial(tensor=TensorHeader("f32", (1 << 16, 1 << 13)))) + bytes(16))


def _largest(node: Node) -> None:
    """Exactly as large as a frame may be."""
    header = TensorHeader("f32", (1 << 12, MAX_TENSOR_BYTES >> 14))
    frame = encode(node.partial(tensor=header)) + bytes(MAX_TENSOR_BYTES)
    assert len(frame) == TENSOR.frame_limit
    node.raw(frame)


def _twice(node: Node) -> None:
    node.contribute(block=9)
    node.contribute(block=9)


def _as_rank_zero(node: Node) -> None:
    answer = Reduced(node.epoch, node.step, 0, 0, 0, TensorHeader("f32", (0, 0)))
    node.raw(encode(answer))
    node.raw(encode(answer))


def _of_no_hop(node: Node) -> None:
    """Slices that no collective asks for."""
    part = Slice(node.epoch, node.step, 0, 0, 0, 200, node.rank, None)
    node.raw(encode(part))
    node.raw(encode(part))


def _far_ahead(node: Node) -> None:
    for block in range(1, 300):
        node.contribute(block=block)


VIOLATIONS: dict[str, tuple[Mischief, str]] = {
    "another shape": (
        lambda node: node.contribute(tensor=TensorHeader("f32", (1, 3))),
        "where an f32 tensor of shape",
    ),
    "not a number": (lambda node: node.contribute(float("nan")), "contributed a value that is not finite"),
    "infinite": (lambda node: node.contribute(-float("inf")), "contributed a value that is not finite"),
    "for another rank": (lambda node: node.contribute(sender=node.rank - 1), "speaks for another node"),
    "twice": (_twice, "twice"),
    "far ahead": (_far_ahead, "too far ahead"),
    "a control message": (
        lambda node: node.raw(encode(Shutdown(node.epoch))),
        "sent Shutdown on the tensor plane",
    ),
    "rank 0's message": (_as_rank_zero, "which only node 0 may send"),
    "of no hop": (_of_no_hop, "twice"),
    "a survey": (lambda node: node.raw(encode(Survey(node.epoch, 0))), "sent Survey on the tensor plane"),
    "links after the survey": (
        lambda node: node.raw(encode(node.links(0))),
        "sent LinkReport on the tensor plane",
    ),
    "junk": (lambda node: node.raw(bytes(range(256))), "malformed"),
    "truncated": (_truncated, "63 bytes, not 64"),
    "half a tensor": (lambda node: node.raw(encode(node.partial()) + bytes(4)), "tensor of 4 bytes where"),
    "two frames": (lambda node: node.raw(encode(node.partial()), bytes(12)), "more than one frame"),
    "deeply nested": (lambda node: node.raw(b"\x91" * 60_000), "malformed"),
    "a long array": (lambda node: node.raw(b"\xdd\x7f\xff\xff\xff\x01"), "malformed"),
    "2 GiB announced": (_announcing, "a message holds at most"),
    "as large as allowed": (_largest, "where an f32 tensor of shape"),
}


def _late(node: Node) -> None:
    node.contribute(float("nan"), epoch=node.epoch - 1)
    node.contribute(float("nan"), step=node.step - 1)
    node.contribute()


def _malformed_to_rank_one(node: Node) -> None:
    assert node.beside is not None
    node.beside._socket.send(b"\x91" * 100)


#: What nobody is left out for.
MISDEEDS: dict[str, Mischief] = {
    "of another time": _late,
    "far too large": lambda node: node.contribute(3e38),
    "a frame beyond the limit": lambda node: node.raw(bytes(TENSOR.frame_limit + 4096)),
    "malformed to rank 1": _malformed_to_rank_one,
}


def _says_links_that_it_cannot_have(node: Node) -> None:
    assert node.tensors is not None
    node.tensors.send(node.links(0, 2))


def _surveys(node: Node) -> None:
    assert node.tensors is not None
    node.tensors.send(Survey(node.epoch, 1))


#: Instead of the links that it measured.
LIES: dict[str, tuple[Mischief, str]] = {
    "links that it cannot have": (_says_links_that_it_cannot_have, "reports links that it cannot have"),
    "a survey of its own": (_surveys, "sent Survey instead of its links"),
}


def _raw(*frames: bytes) -> OnLink:
    return lambda link: link._socket.send_multipart(frames)


def _flood(link: ZmqSpoke) -> None:
    frame = encode(AgentPulse(0))
    for _ in range(_FLOOD_MESSAGES):
        with contextlib.suppress(zmq.Again):
            link._socket.send(frame, zmq.NOBLOCK)


#: To the master.
OF_NODES: dict[str, OnLink] = {
    "listening": _raw(encode(Listening(1, 2, "tcp://203.0.113.1:80"))),
    "as large as allowed": _raw(bytes(MAX_CONTROL_HEADER)),
}
OF_AGENTS: dict[str, OnLink] = {
    "master's": _raw(encode(Launch(1))),
    "two frames": _raw(encode(AgentPulse(0)), b"more"),
    "a flood": _flood,
}
