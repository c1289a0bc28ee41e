"""What is no message: the receiver refuses it, and the sender already what the receiver would."""

import dataclasses

import msgpack
import pytest

from tests.unit.wire.golden import (
    GOLDEN,
    GREEDY,
    HIDDEN,
    PARTIAL,
    REQUEST,
    ROW,
    SHUTDOWN,
    TOKEN,
    flat,
    partial,
    raw,
)
from tpiedge.errors import ProtocolError
from tpiedge.wire.codec import decode, encode
from tpiedge.wire.control import Connect, Generate, Heartbeat, Lost
from tpiedge.wire.data import Hidden, LinkReport, MeasuredLink, Partial, Reduced, Segment, Slice, StepPlan
from tpiedge.wire.epochs import Capacity, Echo, Offer, Preparing
from tpiedge.wire.limits import MAX_BLOB, MAX_CONTROL_HEADER
from tpiedge.wire.messages import PROTOCOL, Message
from tpiedge.wire.tensors import TensorHeader

(OFFER,) = (message for message, _ in GOLDEN if isinstance(message, Offer))


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "not MessagePack"),
        (b"\xc1", "not MessagePack"),
        (b"\xc1\x01", "not MessagePack"),
        (flat(PROTOCOL + 1, PARTIAL), f"protocol {PROTOCOL + 1}, this node {PROTOCOL}"),
        (flat(PROTOCOL, SHUTDOWN), "unknown message tag 47 of the short form"),
        (flat(PROTOCOL, 250), "unknown message tag 250 of the short form"),
        (partial()[:-1], "Partial: 63 bytes, not 64"),
        (partial() + b"\0", "Partial: 65 bytes, not 64"),
        (partial(tensor=b"\x00\x01"), "none of f32, bf16"),
        (partial(tensor=bytes(10) + b"\x01"), "none of f32, bf16"),
        (partial(tensor=b"\x03\x00"), "none of f32, bf16"),
        (partial(tensor=b"\x01\x00\x01"), "TensorHeader.shape"),
        (partial(tensor=b"\x01\x01" + bytes(4) + b"\x01"), "TensorHeader.shape"),
        (partial(tensor=b"\x01\x05" + bytes(20)), "TensorHeader.shape"),
        (partial(sender=128), r"Partial.sender: 128 is not an integer in 0\.\.127"),
        (flat(PROTOCOL, HIDDEN), "Hidden.tensor: is missing"),
        (raw(PROTOCOL, PARTIAL, 1, 1, 1, 1, 1, None), "unknown message tag 3"),
        (raw(PROTOCOL), "no protocol number"),
        (msgpack.packb({}), "a type that no message has"),
        (raw(PROTOCOL + 1, SHUTDOWN, 1), f"protocol {PROTOCOL + 1}, this node {PROTOCOL}"),
        (raw(PROTOCOL, 250, 1), "unknown message tag 250"),
        (raw(True, SHUTDOWN, 1), "not a message"),
        (raw(PROTOCOL, SHUTDOWN), "not the 1 fields of Shutdown"),
        (raw(PROTOCOL, SHUTDOWN, 1, 2), "not the 1 fields of Shutdown"),
        (raw(PROTOCOL, SHUTDOWN, 1) + b"\x00", "not MessagePack"),
        (raw(PROTOCOL, SHUTDOWN, -1), "Shutdown.epoch: -1"),
        (raw(PROTOCOL, SHUTDOWN, 2**32), "Shutdown.epoch"),
        (raw(PROTOCOL, SHUTDOWN, True), "Shutdown.epoch: True"),
        (raw(PROTOCOL, SHUTDOWN, 1.0), "Shutdown.epoch: 1.0"),
        (raw(PROTOCOL, SHUTDOWN, None), "Shutdown.epoch: None"),
        (raw(PROTOCOL, TOKEN, 1, "r", 0, 5, [[1, float("nan")]]), "nan is not a finite"),
        (raw(PROTOCOL, TOKEN, 1, "r", 0, 5, [[1, float("-inf")]]), "-inf is not a finite"),
        (raw(PROTOCOL, TOKEN, 1, "r", 0, 5, [[1, 2.0, 3]]), "not a tuple of 2"),
        (raw(PROTOCOL, TOKEN, 1, "r" * 257, 0, 5, []), "at most 256 characters"),
        (raw(PROTOCOL, TOKEN, 1, b"r", 0, 5, []), "Token.request"),
        (b"\x93\x01\x2f\xa1\xff", "not MessagePack"),
        (b"\xdd\xff\xff\xff\xff", "not MessagePack"),
        (b"\xdf\xff\xff\xff\xff", "not MessagePack"),
        (b"\x91" * 100_000, "not MessagePack"),
        (b"\xd6\xff\x00\x00\x00\x00", "not MessagePack"),
        (bytes(MAX_CONTROL_HEADER + 1), "at most"),
    ],
)  # fmt: skip
def test_refused(data: bytes, cause: str) -> None:
    with pytest.raises(ProtocolError, match=cause):
        decode(data)


def test_sender_refuses_what_the_receiver_would() -> None:
    with pytest.raises(ProtocolError, match=r"Heartbeat\.rank"):
        encode(Heartbeat(1, 128, 0, 0, 0))
    with pytest.raises(ProtocolError, match=r"Echo\.payload: bytes is not at most 262144 bytes"):
        encode(Echo(0, 1, bytes(MAX_BLOB + 1)))
    with pytest.raises(ProtocolError, match="cannot send"):
        encode(Lost(1, 1, "\ud800"))
    with pytest.raises(ProtocolError, match="cannot send"):
        encode(Segment(0, 0, 1, 1, 1))  # type: ignore[arg-type]
    biased = dataclasses.replace(GREEDY, logit_bias=((1, float("inf")),))
    with pytest.raises(ProtocolError, match="logit_bias"):
        encode(Generate(1, dataclasses.replace(REQUEST, sampling=biased)))
    for ids in [(-1,), (2**32,), (True,), (1.0,)]:
        with pytest.raises(ProtocolError, match="prompt_ids"):
            encode(Generate(1, dataclasses.replace(REQUEST, prompt_ids=ids)))


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (LinkReport(1, 1, "h", 4, (MeasuredLink(0, float("nan"), 1e9),)), "nan is not a finite"),
        (LinkReport(1, 1, "h", 4, (MeasuredLink(0, float("inf"), 1e9),)), "inf is not a finite"),
        (LinkReport(1, 1, "h", 4, (MeasuredLink(0, -0.1, 1e9),)), r"MeasuredLink\.round_trip_s: -0\.1"),
        (LinkReport(1, 1, "h", 4, (MeasuredLink(0, 0.1, 1e19),)), r"MeasuredLink\.bytes_per_s: 1e\+19"),
        (LinkReport(1, 1, "h", 4, (MeasuredLink(0, 0.1, 1e9),) * 129), "at most 128 elements"),
        (LinkReport(1, 1, "h", 4, (MeasuredLink(0, 0.1, 1e-300),)), r"1e-300 is not a finite number in .* or 0"),
        (Preparing(1, 0, 0, 0.999), r"Preparing\.bytes_per_s: 0\.999"),
        (dataclasses.replace(OFFER, disk_bytes_per_s=1e-300), r"Offer\.disk_bytes_per_s: 1e-300"),
        (dataclasses.replace(OFFER, disk_bytes_per_s=-0.5), r"Offer\.disk_bytes_per_s: -0\.5"),
        (dataclasses.replace(OFFER, capacity=Capacity(1, 5e-324, 0.0)), r"Capacity\.weight_bytes_per_s"),
        (dataclasses.replace(OFFER, capacity=Capacity(1, 1.0, 0.1)), r"Capacity\.panel_bytes_per_s"),
        (Connect(1, ((0, "x" * 257),)), "at most 256 characters"),
        (StepPlan(1, 1, (), 1, 1, collective="auto"), r"StepPlan\.collective: .* is none of"),  # type: ignore[arg-type]
        (StepPlan(1, 1, (), 1, 1, wire="f16"), r"StepPlan\.wire: .* is none of"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_sender_refuses_links_and_ways_that_the_receiver_would(message: Message, cause: str) -> None:
    with pytest.raises(ProtocolError, match=cause):
        encode(message)


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (Partial(1, 1, 0, 0, 0, 128, None), r"Partial\.sender: 128"),
        (Partial(1, 2**64, 0, 0, 0, 1, None), r"Partial\.step"),
        (Partial(-1, 1, 0, 0, 0, 1, None), r"Partial\.epoch: -1"),
        (Partial(True, 1, 0, 0, 0, 1, None), r"Partial\.epoch: True"),
        (Partial(1, 1, 0.0, 0, 0, 1, None), r"Partial\.block: 0\.0"),  # type: ignore[arg-type]
        (Partial(1, 1, 0, 0, 256, 1, None), r"Partial\.flags: 256"),
        (Slice(1, 1, 0, 0, 0, 256, 1, None), r"Slice\.hop: 256"),
        (Reduced(1, 1, 0, 0, 256, ROW), r"Reduced\.flags: 256"),
        (Reduced(1, 1, 0, 0, 0, None), r"Reduced\.tensor"),  # type: ignore[arg-type]
        (Hidden(1, 1, 0, TensorHeader("f64", (1,))), "f64|none of"),  # type: ignore[arg-type]
        (Hidden(1, 1, 0, TensorHeader("f32", (2**32,))), r"TensorHeader\.shape"),
        (Hidden(1, 1, 0, TensorHeader("f32", (1,) * 5)), "at most 4 elements"),
        (Hidden(1, 1, 0, TensorHeader("f32", (1.0, 2))), r"TensorHeader\.shape: 1\.0"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_sender_refuses_a_short_form_that_the_receiver_would(message: Message, cause: str) -> None:
    with pytest.raises(ProtocolError, match=cause):
        encode(message)
