import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.wire import golden
from tpiedge.errors import ProtocolError
from tpiedge.wire.codec import PROTOCOL, TAGS, decode, encode
from tpiedge.wire.control import Connect, Generate, Heartbeat, Lost, Ready
from tpiedge.wire.data import Hidden, LinkReport, MeasuredLink, Partial, Reduced, Segment, StepPlan
from tpiedge.wire.epochs import Capacity, Echo, Preparing
from tpiedge.wire.fields import MAX_BLOB, MAX_CONTROL_HEADER, Message, TensorHeader


def filled(item: bytes) -> bytes:
    row = b"\xdc\x00\x80" + item * 128
    rows = -(-MAX_CONTROL_HEADER // len(row))
    table = b"".join(b"\xdc\x00\x80" + row * min(rows, 128) for _ in range(-(-rows // 128)))
    return (b"\x93" + bytes((PROTOCOL, golden.SHUTDOWN)) + b"\xdc\x00\x80" + table)[:MAX_CONTROL_HEADER]


ODD = "\N{PLAYING CARD ACE OF SPADES}".encode()
LONG = b"\x98" + bytes((PROTOCOL, golden.TOKEN)) + b"\x01"  # a Token up to its name
READY = next(tag for tag, kind in TAGS.items() if kind is Ready)
#: A node's link has an unknown key with a thousand nested arrays.
DEEP = (
    golden.raw(PROTOCOL, READY, 1, 1, 1, 0.1, "", "", "", [])[:-1]
    + b"\x91\x81\xa1x"
    + b"\x91" * 1000
    + b"\xc0"
)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "no message"),
        (b"\xc1\x01", "no message"),
        (golden.flat(PROTOCOL + 1, golden.PARTIAL), f"protocol {PROTOCOL + 1}, this node {PROTOCOL}"),
        (golden.flat(PROTOCOL, golden.SHUTDOWN), "unknown message tag 47 of the short form"),
        (golden.flat(PROTOCOL, 250), "unknown message tag 250 of the short form"),
        (golden.partial()[:-1], "Partial: 63 bytes, not 64"),
        (golden.partial() + bytes(MAX_CONTROL_HEADER - 64), "Partial: .* bytes, not 64"),
        (golden.partial(tensor=b"\x00\x01"), "none of f32, bf16"),
        (golden.partial(tensor=bytes(10) + b"\x01"), "none of f32, bf16"),
        (golden.partial(tensor=b"\x01\x00\x01"), "shape"),
        (golden.partial(tensor=b"\x01\x01" + bytes(4) + b"\x01"), "shape"),
        (golden.partial(tensor=b"\x01\x05" + bytes(20)), "shape"),
        (golden.flat(PROTOCOL, golden.HIDDEN), "Hidden: the tensor is missing"),
        (golden.raw(PROTOCOL, golden.PARTIAL, 1, 1, 1, 1, 1, None), "unknown message tag 3"),
        (golden.raw(PROTOCOL), "no message"),
        (golden.raw(PROTOCOL + 1, golden.SHUTDOWN, 1), f"protocol {PROTOCOL + 1}, this node {PROTOCOL}"),
        (golden.raw(PROTOCOL, 250, 1), "unknown message tag"),
        (golden.raw(PROTOCOL, golden.SHUTDOWN), "Shutdown: not an array of its 1 fields"),
        (golden.raw(PROTOCOL, golden.SHUTDOWN, 1, 2), "Shutdown: not an array of its 1 fields"),
        (golden.raw(PROTOCOL, golden.SHUTDOWN, 1) + b"\x00", "trailing"),
        (golden.raw(PROTOCOL, golden.SHUTDOWN, -1), "Shutdown: Expected `int` >= 0"),
        (golden.raw(PROTOCOL, golden.SHUTDOWN, 2**32), "Shutdown: Expected `int` <= "),
        (golden.raw(PROTOCOL, golden.SHUTDOWN, True), "got `bool`"),
        (golden.raw(PROTOCOL, golden.SHUTDOWN, 1.5), "got `float`"),
        (golden.raw(PROTOCOL, golden.SHUTDOWN, None), "got `None`"),
        (golden.raw(PROTOCOL, golden.TOKEN, 1, "r", 0, 5, [[1, float("nan")]], 0), "Token: Expected `float`"),
        (golden.raw(PROTOCOL, golden.TOKEN, 1, "r", 0, 5, [[1, float("-inf")]], 0), "Token: Expected `float`"),
        (golden.raw(PROTOCOL, golden.TOKEN, 1, "r", 0, 5, [[1, 2.0, 3]], 0), "length 2, got 3"),
        (golden.raw(PROTOCOL, golden.TOKEN, 1, "r" * 257, 0, 5, [], 0), "length <= 256"),
        (golden.raw(PROTOCOL, golden.TOKEN, 1, b"r", 0, 5, [], 0), "got `bytes`"),
        (golden.raw(PROTOCOL, golden.TOKEN, 1, "r", 0, 5, [], 0)[:-2], "truncated"),
        (LONG + b"\xa1\xff", "Token: "),
        (LONG + b"\xdb\xff\xff\xff\xff", "truncated"),
        (LONG + b"\xdb\x00\x0f\x00\x00" + ODD + b"x" * 983_036, "length <= 256"),
        (LONG + b"\xc6\x00\x0f\x00\x00" + bytes(983_040), "got `bytes`"),
        (LONG + b"\xc9\x00\x0f\x00\x00\x01" + bytes(983_040), "got `ext`"),
        (LONG + b"\xa1r\x00\x05\xdd\xff\xff\xff\xff" + b"\x92\x01\x01" * 300_000, "length <= 33"),
        (LONG + b"\xa1r\x00\x05\x91" + b"\x91" * 1_000_000, "got 1"),
        (b"\xdd\xff\xff\xff\xff" * 200_000, "peer speaks protocol"),
        (b"\xdf\xff\xff\xff\xff", "peer speaks protocol"),
        (b"\x91" * 1_000_000, "peer speaks protocol"),
        (filled(b"\x01"), "got `array`"),
        (DEEP, "Ready: "),
        (filled(b"\xda\x40\x00" + ODD + b"x" * 16380), "got `array`"),
        (bytes(MAX_CONTROL_HEADER + 1), "at most"),
    ],
)  # fmt: skip
@pytest.mark.fault("W2", "refused, with little memory")
def test_malformed_messages_are_refused_fast_in_little_memory(data: bytes, cause: str) -> None:
    with pytest.raises(ProtocolError, match=cause):
        decode(data)
    # A text is made before its length is checked: odd characters take four bytes each.
    assert memory_of(data) < 5 * MAX_CONTROL_HEADER
    # The best of three: whatever else the computer does is not the reader's.
    assert min(seconds_of(data) for _ in range(3)) < 0.020


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (Heartbeat(1, 128, 0, 0, 0), "Heartbeat: Expected `int` <= 127"),
        (Echo(0, 1, bytes(MAX_BLOB + 1)), "length <= 262144"),
        (Lost(1, 1, "\ud800"), "surrogates"),
        (Segment(0, 0, 1, 1), "no message of its own"),
        (Generate(1, replace(golden.REQUEST, sampling=replace(golden.GREEDY, logit_bias=((1, float("inf")),)))),
         "logit_bias"),
        *((Generate(1, replace(golden.REQUEST, prompt_ids=ids)), "prompt_ids")
          for ids in [(-1,), (2**32,), (True,), (1.5,)]),
        (LinkReport(1, 1, "h", 4, (MeasuredLink(0, float("nan"), 1e9),)), "`float`"),
        (LinkReport(1, 1, "h", 4, (MeasuredLink(0, -0.1, 1e9),)), "`float` >= 0"),
        (LinkReport(1, 1, "h", 4, (MeasuredLink(0, 0.1, 1e19),)), "`float` <= "),
        (LinkReport(1, 1, "h", 4, (MeasuredLink(0, 0.1, 1e9),) * 129), "length <= 128"),
        (Connect(1, ((0, "x" * 257),)), "length <= 256"),
        (StepPlan(1, 1, (), 1, 1, collective="auto"), "Invalid enum value 'auto'"),
        (Partial(1, 2**64, 0, 0, 0, 0, 1, None), "Partial: "),
        (Partial(-1, 1, 0, 0, 0, 0, 1, None), "Partial: "),
        (Partial(1, 1, 0.0, 0, 0, 0, 1, None), "Partial: "),
        (Partial(1, 1, 0, 0, 0, 256, 1, None), "Partial: "),
        (Reduced(1, 1, 0, 0, 0, 0, None), "tensor is missing"),
        (Hidden(1, 1, 0, TensorHeader("f64", (1,))), "f64"),
        (Hidden(1, 1, 0, TensorHeader("f32", (2**32,))), "Hidden: "),
        (Hidden(1, 1, 0, TensorHeader("f32", (1,) * 5)), "more than 4"),
    ],
)  # fmt: skip
def test_the_sender_refuses_what_the_receiver_would(message: Message, cause: str) -> None:
    with pytest.raises(ProtocolError, match=cause):
        encode(message)


@pytest.mark.parametrize("rate", [1e-300, 0.999])
def test_rate_below_one_is_refused_by_constructor_and_decoder(rate):
    for make in (
        lambda: Capacity(rate, 0.0),
        lambda: MeasuredLink(0, 0.1, rate),
        lambda: Preparing(1, 0, 0, rate),
    ):
        with pytest.raises(ValueError, match="a rate is 0 or at least 1"):
            make()
    with pytest.raises(ProtocolError, match="a rate is 0 or at least 1"):
        decode(golden.raw(PROTOCOL, 98, 1, 0, 0, rate))


@pytest.mark.fault("W2", "a message, or an error that says what is wrong with it")
@given(
    source=st.sampled_from([encode(message) for message in golden.MESSAGES]),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=8),
    cut=st.floats(0, 1),
)
def test_damaged_messages_are_refused_or_valid(source, changes, cut):
    data = bytearray(source)
    for position, value in changes:
        data[min(int(position * len(data)), len(data) - 1)] = value
    read_again(bytes(data[: max(1, int(cut * len(data)))]))


FIELDS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=8),
)


@given(st.sampled_from(sorted(TAGS)), st.lists(FIELDS, max_size=20))
def test_any_fields_are_refused_or_valid(tag: int, items: list[object]) -> None:
    read_again(golden.raw(PROTOCOL, tag, *items))


def read_again(data: bytes) -> None:
    try:
        message = decode(data)
    except ProtocolError:
        return
    assert decode(encode(message)) == message


def memory_of(data: bytes) -> int:
    tracemalloc.start()
    try:
        read(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def seconds_of(data: bytes) -> float:
    began = time.perf_counter()
    read(data)
    return time.perf_counter() - began


def read(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


@pytest.mark.parametrize(
    ("layers", "axes", "cause"),
    [
        ((2, 2), [], r"a share has the empty range \[2, 2\) of 'layers'"),
        ((0, 9), [("ffn", (4, 2))], r"a share has the empty range \[4, 2\) of 'ffn'"),
        ((0, 9), [("ffn", (0, 1)), ("ffn", (1, 2))], "a share names an axis twice"),
        ((0, 9), [(f"axis {number}", (0, 1)) for number in range(9)], "length <= 8"),
        ((0, 9), [(7, (0, 1))], "Expected `str`, got `int`"),
        ((0, 9), [("ffn", (0, 1, 2))], "length 2, got 3"),
    ],
)
def test_malformed_shares_are_refused_in_one_line(layers: object, axes: object, cause: str) -> None:
    with pytest.raises(ProtocolError, match=f"^Prepare: .*{cause}.*$"):
        decode(golden.raw(PROTOCOL, 97, 3, 1, 2, "p1", (layers, axes), 5, 0.3, 1.5, 60.0))
