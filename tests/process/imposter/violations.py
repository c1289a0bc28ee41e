"""Messages that break the protocol, most of them in the middle of an all-reduce, and the report of each."""

from tests.process.imposter.imposter import Mischief, Node
from tpiedge.transport.endpoint import TENSOR
from tpiedge.wire.codec import FLAT_BYTES, encode
from tpiedge.wire.control import Shutdown
from tpiedge.wire.data import Reduced, Slice, Survey
from tpiedge.wire.fields import MAX_TENSOR_BYTES, TensorHeader


def _truncated(node: Node) -> None:
    node.raw(encode(node.partial())[: FLAT_BYTES - 1])


def _announcing(node: Node) -> None:
    node.raw(encode(node.partial(tensor=TensorHeader("f32", (1 << 16, 1 << 13)))) + bytes(16))


def _largest(node: Node) -> None:
    header = TensorHeader("f32", (1 << 12, MAX_TENSOR_BYTES >> 14))
    frame = encode(node.partial(tensor=header)) + bytes(MAX_TENSOR_BYTES)
    assert len(frame) == TENSOR.frame_limit
    node.raw(frame)


def _twice(node: Node) -> None:
    node.contribute(block=9)
    node.contribute(block=9)


def _as_rank_zero(node: Node) -> None:
    answer = Reduced(node.epoch, node.step, 0, 0, 0, 0, TensorHeader("f32", (0, 0)))
    node.raw(encode(answer))
    node.raw(encode(answer))


def _of_no_hop(node: Node) -> None:
    part = Slice(node.epoch, node.step, 0, 0, 0, 0, 200, node.rank, None)
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
