import pytest

from tests.unit.wire.golden import FIXED, MESSAGES, padded
from tpiedge.wire.codec import FLAT_MARK, PROTOCOL, TAGS, decode, encode
from tpiedge.wire.fields import Message
from tpiedge.wire.join import JOIN_TAGS, Enrol


@pytest.mark.parametrize("message", MESSAGES, ids=lambda value: type(value).__name__)
def test_a_message_comes_back_from_its_bytes(message: Message) -> None:
    assert decode(encode(message)) == message


def test_the_bytes_of_some_messages_are_fixed() -> None:
    kinds = {cls for tag, cls in TAGS.items() if tag in JOIN_TAGS}
    written = [encode(one) for one in MESSAGES if type(one) in kinds or hasattr(one, "tensor")]
    assert written == [padded(bytes.fromhex(data)) for data in FIXED]
    assert {data[1] for data in written} == {0, PROTOCOL}
    assert sum(data[0] == FLAT_MARK for data in written) > 6


def test_every_message_is_in_the_list_and_has_a_tag_of_its_own() -> None:
    # A class with the tag of another would be missing in TAGS.
    assert {type(message) for message in MESSAGES} == set(TAGS.values())


def test_every_message_but_those_of_joining_begins_with_its_epoch() -> None:
    first = {cls.__struct_fields__[0] for tag, cls in TAGS.items() if tag not in JOIN_TAGS}
    assert first == {"epoch"}


def test_the_secret_of_a_token_is_not_shown() -> None:
    assert "s3" not in repr(Enrol(1, "0.1.0", "pi", "s3", "ab", "2.9.1", "little-endian"))
