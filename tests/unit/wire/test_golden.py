"""What every message looks like in bytes."""

import dataclasses

import pytest

from tests.unit.wire.golden import GOLDEN, padded
from tpiedge.wire.codec import decode, encode
from tpiedge.wire.join import JOIN_TAGS, Enrol, Enrolled, Knock, Refused
from tpiedge.wire.messages import TAGS, Message


@pytest.mark.parametrize(("message", "data"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes(message: Message, data: str) -> None:
    expected = padded(bytes.fromhex(data))
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
    assert "s3" not in repr(Enrol(1, "0.1.0", "pi", "s3", "ab", "2.9.1", "little-endian"))
