"""What a kill leaves of a record at any byte reads as the record of an instant before; anything else is found."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.api.records import (
    RECORD_VERSION,
    AcceptedRequest,
    DamagedRecord,
    Said,
    UnknownRecordVersion,
    accepted_line,
    key_mark,
    marks,
    read_record,
    said_line,
)
from tpiedge.api.schema import Reply
from tpiedge.wire.control import PromptScores, Token
from tpiedge.wire.requests import GenerationRequest, Sampling

ACCEPTED = AcceptedRequest(
    GenerationRequest(
        "chatcmpl-1",
        (1, 2, 3),
        8,
        Sampling(temperature=0.7, seed=2**64 - 1, logit_bias=((5, -1.5),), logprobs=2),
        (2, 9),
        keep_prefix=True,
    ),
    Reply(True, True, True, 2, ("\n\n", "half a pair \ud83d"), False),
    1_700_000_000,
    "babbler",
    "pack-1",
    key_mark(b"secret"),
)
floats = st.floats(allow_nan=False, allow_infinity=False)
tokens = st.builds(
    lambda token, scores: (token, tuple(scores)),
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.integers(0, 2**32 - 1), floats), max_size=3),
)
scores = st.builds(
    lambda first, found: (first, tuple(found)), st.integers(1, 100), st.lists(floats, min_size=1)
)


def told(parts: list[tuple[str, tuple[int, tuple[object, ...]]]]) -> list[Said]:
    """The messages of an answer; the index of a token is its place."""
    said: list[Said] = []
    for kind, (number, more) in parts:
        index = sum(isinstance(one, Token) for one in said)
        said.append(
            Token(0, "chatcmpl-1", index, number, more)  # type: ignore[arg-type]
            if kind == "token"
            else PromptScores(0, "chatcmpl-1", number, more)  # type: ignore[arg-type]
        )
    return said


answers = st.lists(
    st.one_of(st.tuples(st.just("token"), tokens), st.tuples(st.just("scores"), scores)), max_size=12
).map(told)


def lines_of(said: list[Said]) -> list[bytes]:
    return [accepted_line(ACCEPTED), *map(said_line, said)]


@given(answers)
def test_what_is_read_is_what_was_written(said: list[Said]) -> None:
    data = b"".join(lines_of(said))
    record = read_record(data)
    assert record is not None
    assert record.accepted == ACCEPTED
    assert record.said == tuple(said)
    assert record.size == len(data)


@given(answers, st.data())
def test_a_file_that_is_cut_at_any_byte_has_every_whole_line(said: list[Said], data: st.DataObject) -> None:
    lines = lines_of(said)
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    record = read_record(whole[:cut])
    count = sum(len(b"".join(lines[: number + 1])) <= cut for number in range(len(lines)))
    if not count:
        assert record is None
        return
    assert record is not None
    assert record.said == tuple(said[: count - 1])
    assert record.size == len(b"".join(lines[:count]))


@given(answers, st.data())
def test_any_changed_byte_of_a_whole_line_is_damage(said: list[Said], data: st.DataObject) -> None:
    whole = bytearray(b"".join(lines_of(said)))
    place = data.draw(st.integers(0, len(whole) - 1))
    end_of_last = place == len(whole) - 1
    whole[place] ^= data.draw(st.integers(1, 255))
    if end_of_last:  # as if it had been cut
        assert whole[-1:] != b"\n"
        return
    with pytest.raises(DamagedRecord):
        read_record(bytes(whole))


def checked(text: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(text), text)


@pytest.mark.parametrize(
    "line",
    [
        b"nothing",
        b"[]",
        b"{}",
        b'{"version":1}',
        b'{"version":1,"request":{},"reply":{},"created":0,"model":"","pack":""}',
    ],
)
def test_a_first_line_that_is_no_request_is_damage(line: bytes) -> None:
    with pytest.raises(DamagedRecord, match="line 1"):
        read_record(checked(line))


@pytest.mark.parametrize(
    "line", [b"-1", b"4294967296", b"1.5", b"true", b'"a"', b"[5]", b'[5,[["a",0.5]]]', b"null", b"{}"]
)
def test_a_line_that_is_no_token_is_damage(line: bytes) -> None:
    with pytest.raises(DamagedRecord, match="line 3"):
        read_record(b"".join([accepted_line(ACCEPTED), checked(b"5"), checked(line)]))


def test_another_version_is_told_from_damage() -> None:
    assert RECORD_VERSION == 1, "the record below must still be read, or its version be refused"
    text = accepted_line(ACCEPTED).partition(b" ")[2].strip().replace(b'"version":1', b'"version":2')
    with pytest.raises(UnknownRecordVersion, match="2"):
        read_record(checked(text))


def test_a_mark_tells_its_key_and_does_not_show_it() -> None:
    mark = key_mark(b"secret")
    assert marks(mark, b"secret")
    assert not marks(mark, b"secrex")
    assert not marks(mark, b"")
    assert mark != key_mark(b"secret"), "salted"
    assert "secret" not in mark
    assert key_mark(b"") == ""
    assert marks("", b"whatever")
