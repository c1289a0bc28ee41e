from dataclasses import replace

import pytest

from tests.unit.wire.golden import FIXED, MESSAGES, REQUEST, padded
from tpiedge.errors import ProtocolError
from tpiedge.wire.codec import FLAT_MARK, PROTOCOL, TAGS, decode, encode
from tpiedge.wire.control import Generate, Shutdown
from tpiedge.wire.data import PageOrder, PageOrders, Segment, StepPlan, TableChange
from tpiedge.wire.fields import (
    MAX_ANSWER_TOKENS,
    MAX_ARRAY,
    MAX_GRAMMAR,
    MAX_MOVES,
    MAX_NAMED_PAGES,
    MAX_PAGES,
    MAX_PROMPT_TOKENS,
    MAX_SEGMENTS,
    MAX_TENSOR_HEADER,
    NAME_BYTES,
    Message,
)
from tpiedge.wire.join import JOIN_TAGS, Enrol
from tpiedge.wire.requests import GenerationRequest, Grammar, Sampling


def test_the_longest_prompt_fits_and_a_longer_one_does_not() -> None:
    longest = replace(REQUEST, prompt_ids=tuple(range(MAX_PROMPT_TOKENS)))
    assert decode(encode(Generate(1, longest))) == Generate(1, longest)
    with pytest.raises(ProtocolError):
        encode(Generate(1, replace(longest, prompt_ids=(1, *longest.prompt_ids))))


def test_longest_resubmitted_request_fits_in_a_message() -> None:
    bias = tuple((token, -1.0) for token in range(1024))
    longest = GenerationRequest(
        id="x" * 256,
        prompt_ids=tuple(range(MAX_PROMPT_TOKENS)),
        max_tokens=MAX_ANSWER_TOKENS,
        sampling=Sampling(logit_bias=bias, seed=2**64 - 1),
        stop_ids=tuple(range(1024)),
        answer_ids=tuple(range(MAX_ANSWER_TOKENS)),
        grammar=Grammar("json", "\N{GRINNING FACE}" * MAX_GRAMMAR),
    )
    assert decode(encode(Generate(2**32 - 1, longest))) == Generate(2**32 - 1, longest)


def test_the_longest_plan_fits_the_tensor_plane() -> None:
    most = 2**32 - 1
    segments = (Segment(most, most, most, most),) * MAX_SEGMENTS
    tables = (TableChange(most, most, (most,) * MAX_PAGES, most),)
    plan = StepPlan(1, 2**64 - 1, segments, most, most, tables=tables)
    assert decode(encode(plan, MAX_TENSOR_HEADER)) == plan


def test_the_most_page_orders_fit_the_tensor_plane() -> None:
    most, pages = 2**32 - 1, MAX_NAMED_PAGES - MAX_ARRAY + 1
    one = PageOrder(2**64 - 1, "leave", True, (most,), bytes(NAME_BYTES))
    many = PageOrder(2**64 - 1, "leave", True, (most,) * pages, bytes(pages * NAME_BYTES))
    orders, asked = (one,) * (MAX_ARRAY - 1) + (many,), (2**64 - 1,) * MAX_ARRAY
    names = bytes(MAX_NAMED_PAGES * NAME_BYTES)
    for message in (
        PageOrders(1, 2**64 - 1, orders, asked),
        PageOrders(1, 2**64 - 1, (), (), ((most, most),) * MAX_MOVES, names),
        PageOrders(1, 2**64 - 1, used=names, room="usual"),
    ):
        assert decode(encode(message, MAX_TENSOR_HEADER)) == message


def test_encode_refuses_messages_over_the_limit() -> None:
    with pytest.raises(ProtocolError, match="at most 3 may be sent"):
        encode(Shutdown(1), limit=3)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda value: type(value).__name__)
def test_every_message_round_trips(message: Message) -> None:
    assert decode(encode(message)) == message


def test_bytes_of_join_and_tensor_messages_are_fixed() -> None:
    kinds = {cls for tag, cls in TAGS.items() if tag in JOIN_TAGS}
    written = [encode(one) for one in MESSAGES if type(one) in kinds or hasattr(one, "tensor")]
    assert written == [padded(bytes.fromhex(data)) for data in FIXED]
    assert {data[1] for data in written} == {0, PROTOCOL}
    assert sum(data[0] == FLAT_MARK for data in written) > 6


def test_sample_messages_cover_every_tag() -> None:
    # A class with the tag of another would be missing in TAGS.
    assert {type(message) for message in MESSAGES} == set(TAGS.values())


def test_all_messages_but_join_begin_with_epoch() -> None:
    first = {cls.__struct_fields__[0] for tag, cls in TAGS.items() if tag not in JOIN_TAGS}
    assert first == {"epoch"}


def test_the_secret_of_a_token_is_not_shown() -> None:
    assert "s3" not in repr(Enrol(1, "0.1.0", "pi", "s3", "ab", "2.9.1", "little-endian"))
