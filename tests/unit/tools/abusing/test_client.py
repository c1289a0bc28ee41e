import json

import pytest

from tools.abusing.client import Heard, canonical, classify

EVENTS = [
    b'data: {"id": "cmpl-%s", "created": %d, "choices": [{"text": " fox"}]}\n\n',
    b'data: {"id": "cmpl-%s", "created": %d, "choices": [{"text": " ran", "finish_reason": "length"}]}\n\n',
    b"data: [DONE]\n\n",
]


def stream(number: int = 1) -> bytes:
    return b"".join(event % (b"%x" % number, number) if b"%" in event else event for event in EVENTS)


REFERENCE = canonical(stream())
HALF = canonical(EVENTS[0] % (b"1", 1))


def refusal(code: str) -> bytes:
    return json.dumps({"error": {"message": "try again later", "code": code}}).encode()


def test_comparison_ignores_ids_times_and_pings() -> None:
    assert stream(2) != stream(3)
    body = b": ping\n" + stream(1) + b": node 1 was lost\n" + stream(2)[len(stream(1)) :]
    assert classify(Heard(200, body, True), canonical(stream(3))) == ("exact", "")


@pytest.mark.parametrize("at", range(0, len(REFERENCE), 7))
def test_a_byte_that_differs_is_wrong(at: int) -> None:
    body = bytearray(REFERENCE)
    body[at] ^= 0x40
    assert classify(Heard(200, bytes(body), True), REFERENCE)[0] == "wrong"
