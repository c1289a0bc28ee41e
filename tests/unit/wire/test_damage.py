"""Whatever the bytes, reading them ends in a message or a refusal: soon, and in little memory."""

import time
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.wire.golden import GOLDEN, HIDDEN, PARTIAL, SHUTDOWN, TOKEN, flat, padded, partial, raw
from tpiedge.errors import ProtocolError
from tpiedge.wire.codec import decode, encode
from tpiedge.wire.control import PeerPulse, PromptScores, Pulse, Token
from tpiedge.wire.data import Segment, StepPlan
from tpiedge.wire.limits import (
    MAX_ARRAY,
    MAX_CONTROL_HEADER,
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_NODES,
    MAX_SEGMENTS,
    MAX_STRINGS,
)
from tpiedge.wire.messages import PROTOCOL, TAGS, Message

#: Beyond the bytes themselves; what a message has in strings is copied.
MEMORY = 1_000_000
SOON_S = 0.010


def filled(item: bytes) -> bytes:
    """A message of nothing but `item`, in arrays within arrays, as long as one may be."""
    row = b"\xdc\x00\x80" + item * 128
    rows = -(-MAX_CONTROL_HEADER // len(row))
    table = b"".join(b"\xdc\x00\x80" + row * min(rows, 128) for _ in range(-(-rows // 128)))
    return (b"\x93\x01\x2f\xdc\x00\x80" + table)[:MAX_CONTROL_HEADER]


HOSTILE = {
    "nothing": b"",
    "truncated": raw(PROTOCOL, TOKEN, 1, "r", 0, 5, [])[:-2],
    "a short form too short": partial()[:-1],
    "a short form too long": partial() + bytes(MAX_CONTROL_HEADER - 64),
    "an unknown tag": raw(PROTOCOL, 250, 1),
    "an unknown tag of the short form": flat(PROTOCOL, 250),
    "another's tag": raw(PROTOCOL, TOKEN, 1),
    "nested without end": b"\x91" * 1_000_000,
    "nested, and wide": b"\xdc\x00\x80" * 300_000,
    "nested, and said to be wider": b"\xdd\x7f\xff\xff\xff" * 200_000,
    "a long array": b"\xdd\xff\xff\xff\xff",
    "a long array that is there": b"\xdd\x00\x0f\x00\x00" + b"\x01" * 983_040,
    "a long map": b"\xdf\xff\xff\xff\xff",
    "a long string": b"\x93\x01\x2f\xdb\xff\xff\xff\xff",
    "a long binary": b"\x93\x01\x2f\xc6\xff\xff\xff\xff",
    "a binary that is there": b"\x93\x01\x2f\xc6\x00\x0f\x00\x00" + bytes(983_040),
    "an extension": b"\x93\x01\x2f\xc9\x00\x0f\x00\x00\x01" + bytes(983_040),
    "numbers": filled(b"\x01"),
    "floats": filled(b"\xcb" + bytes(8)),
    "short strings": filled(b"\xa2xy"),
    "short strings of odd characters": filled(b"\xbf" + "🂡".encode() + b"x" * 27),
    "long strings of odd characters": filled(b"\xda\x40\x00" + "🂡".encode() + b"x" * 16380),
    "one string of odd characters": b"\x93\x01\x2f\xdb\x00\x0f\x00\x00" + "🂡".encode() + b"x" * 983_036,
    "arrays of nothing": filled(b"\x90"),
    "a shape that is not a number": raw(PROTOCOL, HIDDEN, 1, 1, 0, ["f32", [float("nan"), 1]]),
    "a shape of four dimensions too many": partial(tensor=b"\x01\x08" + b"\xff" * 32),
    "a negative step": raw(PROTOCOL, PARTIAL, 1, -1, 0, 0, 1, None),
    "a negative epoch": raw(PROTOCOL, SHUTDOWN, -1),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_hostile_costs_little(data: bytes) -> None:
    assert memory_of(data) < MEMORY
    # The best of three: whatever else the computer does is not the reader's.
    assert min(seconds_of(data) for _ in range(3)) < SOON_S


LONGEST: list[Message] = [
    StepPlan(1, 1, (Segment(2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1),) * MAX_SEGMENTS, 1, 1),
    Pulse(1, (PeerPulse(127, 2**64 - 1, 2**32 - 1, 2**64 - 1, "🂡" * 256),) * MAX_NODES),
    Token(1, "🂡" * 256, 1, 1, ((2**32 - 1, -0.1),) * 33),
    PromptScores(1, "🂡" * 256, 1, (-0.1,) * MAX_ARRAY),
]


@pytest.mark.parametrize("message", LONGEST, ids=lambda message: type(message).__name__)
def test_the_longest_messages_pass(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"\x91" * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} deep"),
        (filled(b"\x01"), f"more than {MAX_ITEMS} items"),
        (
            raw(PROTOCOL, SHUTDOWN, *["x" * (MAX_STRINGS // 4 + 1)] * 4),
            f"more than {MAX_STRINGS} bytes of text",
        ),
        # The parser takes both for items like any other, and reads on behind them.
        *(
            (raw(PROTOCOL, SHUTDOWN, empty), "a type that no message has")
            for empty in ({}, msgpack.ExtType(5, b""))
        ),
    ],
)
def test_too_much_structure_is_refused_in_words(data: bytes, cause: str) -> None:
    with pytest.raises(ProtocolError, match=cause):
        decode(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    _decodes_or_refuses(data)


@given(st.sampled_from(GOLDEN), st.data())
@pytest.mark.fault("W2", "a message, or an error that says what is wrong with it")
def test_any_damage_gives_a_message_or_a_protocol_error(
    case: tuple[Message, str], data: st.DataObject
) -> None:
    damaged = bytearray(padded(bytes.fromhex(case[1])))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    _decodes_or_refuses(bytes(damaged[: data.draw(st.integers(1, len(damaged)))]))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=8),
)


@given(st.sampled_from(sorted(TAGS)), st.lists(_JSON, max_size=20))
def test_any_fields_give_a_message_or_a_protocol_error(tag: int, items: list[object]) -> None:
    _decodes_or_refuses(raw(PROTOCOL, tag, *items))


PIECES = (b"\x91", b"\x9f", b"\xdc\x00\x80", b"\xdd\x00\x00\xff\xff", b"\xa2xy", b"\xc4\x02xy")


@given(st.lists(st.sampled_from(PIECES)))
@pytest.mark.fault("W2", "refused, with little memory")
def test_any_structure_costs_little(parts: list[bytes]) -> None:
    pattern = b"".join(parts) or b"\x90"
    data = (b"\x93\x01\x2f" + pattern * (MAX_CONTROL_HEADER // len(pattern)))[:MAX_CONTROL_HEADER]
    assert memory_of(data) < MEMORY


def memory_of(data: bytes) -> int:
    """The most that is allocated at a time while `data` is refused."""
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def seconds_of(data: bytes) -> float:
    started = time.process_time()
    with pytest.raises(ProtocolError):
        decode(data)
    return time.process_time() - started


def _decodes_or_refuses(data: bytes) -> None:
    started = time.process_time()
    try:
        message = decode(data)
    except ProtocolError:
        message = None
    assert time.process_time() - started < 1.0
    if message is not None:
        assert decode(encode(message)) == message
