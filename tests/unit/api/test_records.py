"""A record that a kill cut at any byte reads as the record of an instant before; any other change is found."""

import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tpiedge.answers.record import RecordedEvent, event_line
from tpiedge.api import records
from tpiedge.api.parsed import Choice, Reply
from tpiedge.api.transcript import EchoedPrompt
from tpiedge.wire.control import Finished, PromptScores, Token
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling

Said = list[RecordedEvent]
Answer = tuple[records.AcceptedRequest, Said]
NAME = "chatcmpl-1"
REQUEST = GenerationRequest(
    "",
    (1, 2, 3),
    8,
    Sampling(temperature=0.7, seed=2**64 - 1, logit_bias=((5, -1.5),), logprobs=2),
    (2, 9),
    keep_prefix=True,
    grammar=Grammar("json", '{"type": "object"}'),
    scope="5c09e",
)
REPLY = Reply("chat", True, True, 2, ("\n\n", "half a pair \ud83d"), False)


def accepted_of(choices: Sequence[Choice], count: int = 1) -> records.AcceptedRequest:
    """`count` of each."""
    key = records.key_mark(b"secret")
    return records.AcceptedRequest(
        NAME, tuple(choices), count, REPLY, 1_700_000_000, "babbler", "pack-1", key
    )


ACCEPTED = accepted_of([Choice(REQUEST)])
SEVERAL = accepted_of(
    [
        Choice(REQUEST, 0, EchoedPrompt("a \ud83d", (0, 1, 2))),
        Choice(replace(REQUEST, prompt_ids=(4,), prompt_scores=True), 1),
    ],
    count=3,
)
floats = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.integers(0, 2**32 - 1)
pairs = st.lists(st.tuples(numbers, floats), max_size=3).map(tuple)
contents = st.one_of(
    st.builds(Token, st.just(0), st.just(""), st.just(0), numbers, pairs),
    st.builds(
        PromptScores,
        st.just(0),
        st.just(""),
        numbers,
        st.tuples(floats, floats),
        pairs.map(lambda one: one * 2),
    ),
    st.builds(Finished, st.just(0), st.just(""), st.sampled_from(("stop", "length")), *4 * [numbers]),
)


def said_of(
    accepted: records.AcceptedRequest, drawn: list[tuple[int, Token | PromptScores | Finished]]
) -> Said:
    """Returns the events with the names of their requests, and tokens with their numbers."""
    counts: Counter[int] = Counter()
    found = []
    for choice, event in drawn:
        event = structs.replace(event, request=accepted.choices[choice].request.id)
        if isinstance(event, Token):
            event = structs.replace(event, index=counts[choice])
            counts[choice] += 1
        found.append((choice, event))
    return found


answers = st.one_of(
    st.tuples(
        st.just(accepted),
        st.lists(st.tuples(st.integers(0, len(accepted.choices) - 1), contents), max_size=12),
    ).map(lambda drawn: (drawn[0], said_of(*drawn)))
    for accepted in (ACCEPTED, SEVERAL)
)


def lines_of(accepted: records.AcceptedRequest, said: Said) -> list[bytes]:
    head, request = records.accepted_lines(accepted).splitlines(keepends=True)
    return [head, request, *(event_line(*one) for one in said)]


@given(answers)
def test_record_reads_back_as_written(answer: Answer) -> None:
    accepted, said = answer
    data = b"".join(lines_of(*answer))
    record = records.read_record(data, ACCEPTED.pack)
    assert record is not None
    assert record.accepted == accepted
    assert record.said == tuple(said)
    assert record.size == len(data)
    with pytest.raises(records.OtherModel):
        records.read_record(data, "pack-2")


@given(answers, st.data())
def test_truncated_record_yields_every_whole_line(answer: Answer, data: st.DataObject) -> None:
    said, lines = answer[1], lines_of(*answer)
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    record = records.read_record(whole[:cut], ACCEPTED.pack)
    count = sum(len(b"".join(lines[: number + 1])) <= cut for number in range(len(lines)))
    with pytest.raises(records.OtherModel) if count else nullcontext():
        records.read_record(whole[:cut], "pack-2")
    if count < 2:
        assert record is None
        return
    assert record is not None
    assert record.said == tuple(said[: count - 2])
    assert record.size == len(b"".join(lines[:count]))


@given(answers, st.data())
def test_any_changed_byte_of_a_whole_line_is_damage(answer: Answer, data: st.DataObject) -> None:
    whole = bytearray(b"".join(lines_of(*answer)))
    place = data.draw(st.integers(0, len(whole) - 1))
    end_of_last = place == len(whole) - 1
    whole[place] ^= data.draw(st.integers(1, 255))
    if end_of_last:  # as if it had been cut
        assert whole[-1:] != b"\n"
        return
    with pytest.raises(records.DamagedRecord):
        records.read_record(bytes(whole), ACCEPTED.pack)


def checked(text: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(text), text)


REQUEST_LINE = records.accepted_lines(ACCEPTED).splitlines(keepends=True)[1]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        *((1, text) for text in (b"nothing", b"[]", b"{}", b'{"version":%d}' % records.RECORD_VERSION)),
        *((2, text) for text in (b"nothing", b"[]", b"{}", REQUEST_LINE[9:-1].replace(b'"babbler"', b"7"))),
        *((4, text) for text in (b"-1", b"4294967296", b"1.5", b"true", b'"a"', b"[0]", b"null", b"{}")),
        *((4, text) for text in (b"[1,5,[]]", b"[-1,5,[]]", b"[true,5,[]]", b'[0,5,[["a",0.5]]]')),
        *((4, text) for text in (b'[0,"scores",1]', b'[0,"scores",[0,"",1,["a"],{"hex":""}]]')),
        (4, b'[0,"scores",[0,"",1,[],{"hex":""}]]'),
        (4, b'[0,"ended",[0,"","well",1,1,1,1,0.0]]'),
        (4, b'[0,"ended",[0,"","stop",1,1,1]]'),
        (4, b'[0,"other",[]]'),
    ],
)
def test_invalid_record_lines_are_damage(line: int, found: bytes) -> None:
    lines = [*records.accepted_lines(ACCEPTED).splitlines(keepends=True), checked(b"5"), b""]
    lines[line - 1] = checked(found)
    with pytest.raises(records.DamagedRecord, match=f"line {line}"):
        records.read_record(b"".join(lines), ACCEPTED.pack)


def test_other_record_version_is_not_reported_as_damage() -> None:
    assert records.RECORD_VERSION == 6, "the records below must still be read, or their versions be refused"
    for version in (b"5", b"7"):
        head = checked(b'{"version":%b,"more":"whatever"}' % version)
        with pytest.raises(records.UnknownRecordVersion, match=version.decode()):
            records.read_record(head + checked(b"{}"), ACCEPTED.pack)


def test_prompt_is_recorded_once_for_all_choices() -> None:
    one, many = (accepted_of([Choice(replace(REQUEST, prompt_ids=(7,) * 500))], count) for count in (1, 128))
    assert len(records.accepted_lines(many)) < len(records.accepted_lines(one)) + 10


def test_too_many_choices_in_a_record_are_damage() -> None:
    with pytest.raises(records.DamagedRecord, match="line 2"):
        records.read_record(records.accepted_lines(replace(SEVERAL, each=128)), SEVERAL.pack)


def test_key_mark_matches_its_key_without_revealing_it() -> None:
    mark = records.key_mark(b"secret")
    assert records.marks(mark, b"secret")
    assert not records.marks(mark, b"secrex")
    assert not records.marks(mark, b"")
    assert mark != records.key_mark(b"secret"), "salted"
    assert "secret" not in mark
    assert records.key_mark(b"") == ""
    assert records.marks("", b"whatever")
