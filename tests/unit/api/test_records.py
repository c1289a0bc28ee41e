"""What a kill leaves of a record at any byte reads as the record of an instant before; anything else is found."""

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.api.asked import Reply
from tpiedge.api.records import (
    HEAD_BYTES,
    RECORD_VERSION,
    AcceptedRequest,
    DamagedRecord,
    UnknownRecordVersion,
    accepted_lines,
    key_mark,
    marks,
    read_head,
    read_record,
    token_line,
)
from tpiedge.wire.control import Token
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling

ACCEPTED = AcceptedRequest(
    GenerationRequest(
        "chatcmpl-1",
        (1, 2, 3),
        8,
        Sampling(temperature=0.7, seed=2**64 - 1, logit_bias=((5, -1.5),), logprobs=2),
        (2, 9),
        keep_prefix=True,
        grammar=Grammar("json", '{"type": "object"}'),
    ),
    Reply("chat", True, True, 2, ("\n\n", "half a pair \ud83d"), False),
    1_700_000_000,
    "babbler",
    "pack-1",
    key_mark(b"secret"),
)
floats = st.floats(allow_nan=False, allow_infinity=False)
answers = st.lists(
    st.tuples(
        st.integers(0, 2**32 - 1),
        st.lists(st.tuples(st.integers(0, 2**32 - 1), floats), max_size=3).map(tuple),
    ),
    max_size=12,
).map(lambda drawn: [Token(0, "chatcmpl-1", index, *one) for index, one in enumerate(drawn)])


def lines_of(said: list[Token]) -> list[bytes]:
    head, request = accepted_lines(ACCEPTED).splitlines(keepends=True)
    return [head, request, *map(token_line, said)]


@given(answers)
def test_what_is_read_is_what_was_written(said: list[Token]) -> None:
    data = b"".join(lines_of(said))
    record = read_record(data)
    assert record is not None
    assert record.accepted == ACCEPTED
    assert record.said == tuple(said)
    assert record.size == len(data)
    assert read_head(data[:HEAD_BYTES]) == ACCEPTED.pack


@given(answers, st.data())
def test_a_file_that_is_cut_at_any_byte_has_every_whole_line(said: list[Token], data: st.DataObject) -> None:
    lines = lines_of(said)
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    record = read_record(whole[:cut])
    count = sum(len(b"".join(lines[: number + 1])) <= cut for number in range(len(lines)))
    assert read_head(whole[:cut]) == (ACCEPTED.pack if count else None)
    if count < 2:
        assert record is None
        return
    assert record is not None
    assert record.said == tuple(said[: count - 2])
    assert record.size == len(b"".join(lines[:count]))


@given(answers, st.data())
def test_any_changed_byte_of_a_whole_line_is_damage(said: list[Token], data: st.DataObject) -> None:
    whole = bytearray(b"".join(lines_of(said)))
    place = data.draw(st.integers(0, len(whole) - 1))
    end_of_last = place == len(whole) - 1
    whole[place] ^= data.draw(st.integers(1, 255))
    if end_of_last:  # as if it had been cut
        assert whole[-1:] != b"\n"
        return
    with pytest.raises(DamagedRecord):
        read_record(bytes(whole))


@pytest.mark.parametrize("letter", ["a", "\n", "\u00fc", "\N{GRINNING FACE}"])
def test_the_first_line_is_short_however_the_weights_are_called(letter: str) -> None:
    data = accepted_lines(replace(ACCEPTED, pack=256 * letter))
    assert read_head(data[:HEAD_BYTES]) == 256 * letter


def test_a_beginning_without_a_line_is_damage() -> None:
    assert read_head(b"x" * (HEAD_BYTES - 1)) is None, "it may have been cut off"
    with pytest.raises(DamagedRecord, match="line 1"):
        read_head(b"x" * HEAD_BYTES)


def checked(text: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(text), text)


HEAD = checked(b'{"version":%d,"pack":"pack-1"}' % RECORD_VERSION)


@pytest.mark.parametrize("line", [b"nothing", b"[]", b"{}", b'{"version":3}', b'{"version":3,"pack":5}'])
def test_a_first_line_that_names_no_weights_is_damage(line: bytes) -> None:
    for read in (read_head, read_record):
        with pytest.raises(DamagedRecord, match="line 1"):
            read(checked(line) + checked(b"{}"))


@pytest.mark.parametrize(
    "line",
    [
        b"nothing",
        b"[]",
        b"{}",
        b'{"request":{}}',
        b'{"request":{},"reply":{},"created":0,"model":"","pack":""}',
    ],
)
def test_a_second_line_that_is_no_request_is_damage(line: bytes) -> None:
    with pytest.raises(DamagedRecord, match="line 2"):
        read_record(HEAD + checked(line))


@pytest.mark.parametrize(
    "line", [b"-1", b"4294967296", b"1.5", b"true", b'"a"', b"[5]", b'[5,[["a",0.5]]]', b"null", b"{}"]
)
def test_a_line_that_is_no_token_is_damage(line: bytes) -> None:
    with pytest.raises(DamagedRecord, match="line 4"):
        read_record(b"".join([accepted_lines(ACCEPTED), checked(b"5"), checked(line)]))


def test_another_version_is_told_from_damage() -> None:
    assert RECORD_VERSION == 3, "the record below must still be read, or its version be refused"
    for read in (read_head, read_record):
        with pytest.raises(UnknownRecordVersion, match="4"):
            read(checked(b'{"version":4,"more":"whatever"}') + checked(b"{}"))


def test_a_mark_tells_its_key_and_does_not_show_it() -> None:
    mark = key_mark(b"secret")
    assert marks(mark, b"secret")
    assert not marks(mark, b"secrex")
    assert not marks(mark, b"")
    assert mark != key_mark(b"secret"), "salted"
    assert "secret" not in mark
    assert key_mark(b"") == ""
    assert marks("", b"whatever")
