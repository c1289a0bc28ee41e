"""The codec: what every message looks like in bytes, and what is refused."""

import dataclasses
import time
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import ProtocolError
from tpiedge.wire.codec import decode, encode, tensors_of
from tpiedge.wire.control import (
    Accused,
    AskStats,
    Assign,
    Cancel,
    Failed,
    Finished,
    Generate,
    Heartbeat,
    Hello,
    Listening,
    Loading,
    Lost,
    PeerPulse,
    PromptScores,
    Pulse,
    Ready,
    Shutdown,
    Stats,
    Token,
)
from tpiedge.wire.data import Gathered, Hidden, Partial, Reduced, Segment, StepPlan
from tpiedge.wire.epochs import (
    AgentPulse,
    AskOffer,
    Capacity,
    Echo,
    Launch,
    Leaving,
    MasterPulse,
    NodeEnded,
    Offer,
    Prepare,
    Prepared,
    Preparing,
    Probe,
    Release,
    Spawned,
)
from tpiedge.wire.files import Chunk, Fetch, FetchFailed
from tpiedge.wire.join import JOIN_TAGS, Challenge, Enrol, Enrolled, Knock, Refused, Reveal, Verdict
from tpiedge.wire.limits import MAX_BLOB, MAX_CONTROL_HEADER, MAX_PROMPT_TOKENS, MAX_TENSOR_HEADER
from tpiedge.wire.messages import PROTOCOL, TAGS, Message
from tpiedge.wire.requests import GenerationRequest, Sampling
from tpiedge.wire.tensors import TensorHeader

GREEDY = Sampling(0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, ((5, -1.5),), 2**64 - 1, 2)
REQUEST = GenerationRequest("r1", (1, 2, 70000), 16, GREEDY, (2,), False, True)
ROW = TensorHeader("f32", (1, 2048))

GOLDEN: list[tuple[Message, str]] = [
    (
        StepPlan(1, 2, (Segment(0, 5, 1, 6), Segment(1, 0, 300, 300)), 256, 301),
        "9701010102929400050106940100cd012ccd012ccd0100cd012d",
    ),
    (
        Hidden(1, 2, 0, ROW),
        "c101020100000002000000000000000000000001020100000000080000",
    ),
    (
        Partial(1, 2, 3, 0, 1, ROW),
        "c1010301000000020000000000000003000000000000000101020100000000080000",
    ),
    (
        Partial(1, 2, 3, 0, 1, None),
        "c101030100000002000000000000000300000000000000010000",
    ),
    (
        Reduced(1, 2, 3, 0, 1, ROW),
        "c1010401000000020000000000000003000000000000000101020100000000080000",
    ),
    (
        Gathered(1, 2, 3, 0, 1, TensorHeader("bf16", (2, 2))),
        "c1010501000000020000000000000003000000000000000102020200000002000000",
    ),
    (
        Hello(0, 1, 4242, 1, "0.1.0", 2, "a CPU"),
        "9901200001cd109201a5302e312e3002a56120435055",
    ),
    (
        Assign(
            1,
            1,
            (0, 1),
            (8, 16),
            (0, 3),
            "/p",
            "bf16",
            2,
            4096,
            1,
            "tcp://127.0.0.1:5",
            "k" * 40,
            ((1, ""),),
        ),
        "9f01210101920001920810920003a22f70a46266313602cd100001b17463703a2f2f3132372e302e302e313a35d9286b"
        "6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b919201a0",
    ),
    (
        Listening(1, 0, "tcp://127.0.0.1:5"),
        "9501220100b17463703a2f2f3132372e302e302e313a35",
    ),
    (
        Loading(1, 1, 10, 1 << 33),
        "96012301010acf0000000200000000",
    ),
    (
        Ready(1, 1, 1 << 33, 2.5),
        "9601240101cf0000000200000000cb4004000000000000",
    ),
    (
        Heartbeat(1, 1, 7, 8, 9),
        "9701250101070809",
    ),
    (
        Pulse(1, (PeerPulse(0, 12, 7, 8, 9, "ready"),)),
        "940126019196000c070809a57265616479",
    ),
    (
        Lost(1, 1, "killed by signal 9"),
        "9501270101b26b696c6c6564206279207369676e616c2039",
    ),
    (
        Generate(1, REQUEST),
        "9401280198a27231c40c010000000200000070110100109acb000000000000000000cb3ff0000000000000cb00000000"
        "00000000cb3ff0000000000000cb0000000000000000cb0000000000000000c40c05000000000000000000f8bfcfffff"
        "ffffffffffff02c40402000000c2c3c2",
    ),
    (
        Token(1, "r1", 0, 70000, ((70000, -0.5), (3, -2.0))),
        "97012901a2723100ce000111709292ce00011170cbbfe00000000000009203cbc000000000000000",
    ),
    (
        PromptScores(1, "r1", 1, (-0.5, -2.0)),
        "96013001a272310192cbbfe0000000000000cbc000000000000000",
    ),
    (
        Finished(1, "r1", "length", 3, 16, 0.25, 1.5),
        "99012a01a27231a66c656e6774680310cb3fd0000000000000cb3ff8000000000000",
    ),
    (
        Failed(1, 0, "", "PeerLost", "node 1 was lost"),
        "97012b0100a0a8506565724c6f7374af6e6f6465203120776173206c6f7374",
    ),
    (
        Accused(1, 0, 2, "no"),
        "960131010002a26e6f",
    ),
    (
        Cancel(1, "r1"),
        "94012c01a27231",
    ),
    (
        AskStats(1),
        "93012d01",
    ),
    (
        Stats(1, 0, 1, 2, 3, 4, 5, 6, 0.5, 0.25, 0.0, 7, 8, 0.125),
        "dc0010012e0100010203040506cb3fe0000000000000cb3fd0000000000000cb00000000000000000708cb3fc0000000"
        "000000",
    ),
    (
        Shutdown(1),
        "93012f01",
    ),
    (
        Enrol(1, "0.1.0", "pi", "s3", "ab"),
        "97004001a5302e312e30a27069a27333a26162",
    ),
    (
        Enrolled("w-1", "c", 1, "0.1.0"),
        "960041a3772d31a16301a5302e312e30",
    ),
    (
        Refused("used", "no"),
        "940042a475736564a26e6f",
    ),
    (
        Knock(1, "0.1.0", "pi", b"n"),
        "96004301a5302e312e30a27069c4016e",
    ),
    (
        Challenge("k" * 40, b"n"),
        "940044d9286b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6bc4016e",
    ),
    (
        Reveal(b"p"),
        "930045c40170",
    ),
    (
        Verdict(b"p", ""),
        "940046c40170a0",
    ),
    (
        Fetch(7, 1, "pppp", "blob", "bbbb", 4096, 1 << 20, 1 << 33),
        "9a01500701a470707070a4626c6f62a462626262cd1000ce00100000cf0000000200000000",
    ),
    (
        Chunk(7, 1, 1 << 33, TensorHeader("u8", (1 << 20,))),
        "c10151070000000100000000000000020000000801000010",
    ),
    (
        FetchFailed(7, 1, "no"),
        "9501520701a26e6f",
    ),
    (
        Offer(
            0,
            "w-0123456789abcdef",
            "pi",
            "0.1.0",
            1,
            7,
            "a CPU",
            "avx2",
            2,
            1 << 32,
            1 << 36,
            Capacity(2, 3e9, 5e10, 1e10),
            2e8,
            ("p1",),
        ),
        "dc0010016000b2772d30313233343536373839616263646566a27069a5302e312e300107a56120435055a46176783202"
        "cf0000000100000000cf00000010000000009402cb41e65a0bc0000000cb42274876e8000000cb4202a05f20000000cb"
        "41a7d7840000000091a27031",
    ),
    (
        Prepare(3, 1, 2, "p1", (8, 16), (0, 3), "bf16", 2, 4096, 0.3, 1.5, 60.0),
        "9e0161030102a27031920810920003a46266313602cd1000cb3fd3333333333333cb3ff8000000000000cb404e000000"
        "000000",
    ),
    (
        Preparing(3, 10, 1 << 33, 1e8),
        "960162030acf0000000200000000cb4197d78400000000",
    ),
    (
        Spawned(3, 1, 4242),
        "9501630301cd1092",
    ),
    (
        NodeEnded(3, "DiskFull", "no room"),
        "95016403a84469736b46756c6ca76e6f20726f6f6d",
    ),
    (
        Release(3),
        "93016503",
    ),
    (
        AgentPulse(3, 9),
        "9401660309",
    ),
    (
        MasterPulse(3, "ready"),
        "94016703a57265616479",
    ),
    (
        Probe(0, 1, 2, b"\0\1"),
        "960168000102c4020001",
    ),
    (
        Echo(0, 1, b"\2"),
        "9501690001c40102",
    ),
    (
        AskOffer(0),
        "93016a00",
    ),
    (
        Prepared(3, "k" * 40, 9),
        "95016b03d9286b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b09",
    ),
    (
        Launch(3),
        "93016c03",
    ),
    (
        Leaving(3),
        "93016d03",
    ),
]


@pytest.mark.parametrize(("message", "data"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes(message: Message, data: str) -> None:
    expected = _padded(bytes.fromhex(data))
    assert encode(message) == expected
    assert decode(expected) == message


def test_every_message_has_golden_bytes_and_a_tag_of_its_own() -> None:
    assert {type(message) for message, _ in GOLDEN} == set(TAGS.values())
    assert len(set(TAGS.values())) == len(TAGS)


def test_every_message_but_those_of_joining_begins_with_its_epoch() -> None:
    assert {dataclasses.fields(cls)[0].name for tag, cls in TAGS.items() if tag not in JOIN_TAGS} == {"epoch"}


def test_messages_of_joining_have_the_same_bytes_in_every_protocol() -> None:
    kinds = Enrol | Enrolled | Refused | Knock
    assert {encode(message)[1] for message, _ in GOLDEN if isinstance(message, kinds)} == {0}


def test_the_secret_of_a_token_is_not_shown() -> None:
    assert "s3" not in repr(Enrol(1, "0.1.0", "pi", "s3", "ab"))


def _raw(*items: object) -> bytes:
    return bytes(msgpack.packb(items))


def _padded(data: bytes) -> bytes:
    """The short form ends in zeros, which are left out in this file."""
    return data.ljust(64, b"\0") if data[0] == 0xC1 else data


def _flat(protocol: int, tag: int, rest: bytes = b"") -> bytes:
    return _padded(bytes((0xC1, protocol, tag)) + rest)


def _partial(sender: int = 1, tensor: bytes = bytes(2)) -> bytes:
    """A Partial of five integers 0, save its sender."""
    return _flat(PROTOCOL, PARTIAL, bytes(4 + 8 + 4 + 4) + bytes((sender,)) + tensor)


SHUTDOWN = next(tag for tag, cls in TAGS.items() if cls is Shutdown)
PARTIAL = next(tag for tag, cls in TAGS.items() if cls is Partial)
HIDDEN = next(tag for tag, cls in TAGS.items() if cls is Hidden)
TOKEN = next(tag for tag, cls in TAGS.items() if cls is Token)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "not MessagePack"),
        (b"\xc1", "not MessagePack"),
        (b"\xc1\x01", "not MessagePack"),
        (_flat(PROTOCOL + 1, PARTIAL), f"protocol {PROTOCOL + 1}, this node {PROTOCOL}"),
        (_flat(PROTOCOL, SHUTDOWN), "unknown message tag 47 of the short form"),
        (_flat(PROTOCOL, 250), "unknown message tag 250 of the short form"),
        (_partial()[:-1], "Partial: 63 bytes, not 64"),
        (_partial() + b"\0", "Partial: 65 bytes, not 64"),
        (_partial(tensor=b"\x00\x01"), "none of f32, bf16"),
        (_partial(tensor=bytes(10) + b"\x01"), "none of f32, bf16"),
        (_partial(tensor=b"\x03\x00"), "none of f32, bf16"),
        (_partial(tensor=b"\x01\x00\x01"), "TensorHeader.shape"),
        (_partial(tensor=b"\x01\x01" + bytes(4) + b"\x01"), "TensorHeader.shape"),
        (_partial(tensor=b"\x01\x05" + bytes(20)), "TensorHeader.shape"),
        (_partial(sender=128), r"Partial.sender: 128 is not an integer in 0\.\.127"),
        (_flat(PROTOCOL, HIDDEN), "Hidden.tensor: is missing"),
        (_raw(PROTOCOL, PARTIAL, 1, 1, 1, 1, 1, None), "unknown message tag 3"),
        (_raw(PROTOCOL), "no protocol number"),
        (msgpack.packb({}), "not a message"),
        (_raw(PROTOCOL + 1, SHUTDOWN, 1), f"protocol {PROTOCOL + 1}, this node {PROTOCOL}"),
        (_raw(PROTOCOL, 250, 1), "unknown message tag 250"),
        (_raw(True, SHUTDOWN, 1), "not a message"),
        (_raw(PROTOCOL, SHUTDOWN), "not the 1 fields of Shutdown"),
        (_raw(PROTOCOL, SHUTDOWN, 1, 2), "not the 1 fields of Shutdown"),
        (_raw(PROTOCOL, SHUTDOWN, 1) + b"\x00", "not MessagePack"),
        (_raw(PROTOCOL, SHUTDOWN, -1), "Shutdown.epoch: -1"),
        (_raw(PROTOCOL, SHUTDOWN, 2**32), "Shutdown.epoch"),
        (_raw(PROTOCOL, SHUTDOWN, True), "Shutdown.epoch: True"),
        (_raw(PROTOCOL, SHUTDOWN, 1.0), "Shutdown.epoch: 1.0"),
        (_raw(PROTOCOL, SHUTDOWN, None), "Shutdown.epoch: None"),
        (_raw(PROTOCOL, TOKEN, 1, "r", 0, 5, [[1, float("nan")]]), "nan is not a finite"),
        (_raw(PROTOCOL, TOKEN, 1, "r", 0, 5, [[1, float("-inf")]]), "-inf is not a finite"),
        (_raw(PROTOCOL, TOKEN, 1, "r", 0, 5, [[1, 2.0, 3]]), "not a tuple of 2"),
        (_raw(PROTOCOL, TOKEN, 1, "r" * 257, 0, 5, []), "at most 256 characters"),
        (_raw(PROTOCOL, TOKEN, 1, b"r", 0, 5, []), "Token.request"),
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


def test_nested_arrays_cannot_make_the_parser_allocate_much() -> None:
    bomb = b"\xdc\x00\x80" * 20_000
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        decode(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    _decodes_or_refuses(data)


@given(st.sampled_from(GOLDEN), st.data())
def test_any_damage_gives_a_message_or_a_protocol_error(
    case: tuple[Message, str], data: st.DataObject
) -> None:
    damaged = bytearray(_padded(bytes.fromhex(case[1])))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    _decodes_or_refuses(bytes(damaged[: data.draw(st.integers(1, len(damaged)))]))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=8),
)


@given(st.sampled_from(sorted(TAGS)), st.lists(_JSON, max_size=20))
def test_any_fields_give_a_message_or_a_protocol_error(tag: int, items: list[object]) -> None:
    _decodes_or_refuses(_raw(PROTOCOL, tag, *items))


def _decodes_or_refuses(data: bytes) -> None:
    started = time.perf_counter()
    try:
        message = decode(data)
    except ProtocolError:
        message = None
    assert time.perf_counter() - started < 1.0
    if message is not None:
        assert decode(encode(message)) == message


def test_sender_refuses_what_the_receiver_would() -> None:
    with pytest.raises(ProtocolError, match=r"Heartbeat\.rank"):
        encode(Heartbeat(1, 128, 0, 0, 0))
    with pytest.raises(ProtocolError, match=r"Echo\.payload: bytes is not at most 262144 bytes"):
        encode(Echo(0, 1, bytes(MAX_BLOB + 1)))
    with pytest.raises(ProtocolError, match="cannot send"):
        encode(Lost(1, 1, "\ud800"))
    with pytest.raises(ProtocolError, match="cannot send"):
        encode(Segment(0, 0, 1, 1))  # type: ignore[arg-type]
    biased = dataclasses.replace(GREEDY, logit_bias=((1, float("inf")),))
    with pytest.raises(ProtocolError, match="logit_bias"):
        encode(Generate(1, dataclasses.replace(REQUEST, sampling=biased)))
    for ids in [(-1,), (2**32,), (True,), (1.0,)]:
        with pytest.raises(ProtocolError, match="prompt_ids"):
            encode(Generate(1, dataclasses.replace(REQUEST, prompt_ids=ids)))


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (Partial(1, 1, 0, 0, 128, None), r"Partial\.sender: 128"),
        (Partial(1, 2**64, 0, 0, 1, None), r"Partial\.step"),
        (Partial(-1, 1, 0, 0, 1, None), r"Partial\.epoch: -1"),
        (Partial(True, 1, 0, 0, 1, None), r"Partial\.epoch: True"),
        (Partial(1, 1, 0.0, 0, 1, None), r"Partial\.block: 0\.0"),  # type: ignore[arg-type]
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


def test_whole_numbers_may_stand_for_floats_when_sending() -> None:
    assert decode(encode(Ready(1, 0, 5, 2))) == Ready(1, 0, 5, 2.0)


def test_the_longest_prompt_fits_and_a_longer_one_does_not() -> None:
    longest = dataclasses.replace(REQUEST, prompt_ids=tuple(range(MAX_PROMPT_TOKENS)))
    assert decode(encode(Generate(1, longest))) == Generate(1, longest)
    with pytest.raises(ProtocolError):
        encode(Generate(1, dataclasses.replace(longest, prompt_ids=(1, *longest.prompt_ids))))


def test_the_longest_plan_fits_the_tensor_plane() -> None:
    segments = (Segment(2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1),) * 128
    assert len(encode(StepPlan(1, 2**64 - 1, segments, 2**32 - 1, 2**32 - 1), MAX_TENSOR_HEADER)) < 4096


def test_encoding_keeps_the_limit() -> None:
    with pytest.raises(ProtocolError, match="at most 3 may be sent"):
        encode(Shutdown(1), limit=3)


def test_tensors_of() -> None:
    assert tensors_of(Hidden(1, 1, 0, ROW)) == (ROW,)
    assert tensors_of(Partial(1, 1, 0, 0, 1, None)) == ()
    assert tensors_of(Shutdown(1)) == ()
