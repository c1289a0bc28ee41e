"""Parts of an answer as bytes: JSON, and the events of a stream."""

import json
from collections.abc import Iterator

from tpiedge.sanitise import sanitised_line

Json = dict[str, object]
"""An object of JSON."""
EVENT_STREAM = b"text/event-stream; charset=utf-8"
JSON_LINES = b"application/x-ndjson"

_PART = 128
"""Entries of a list; one that has no more may have large ones, as the choices of an answer are."""


def json_bytes(value: object) -> bytes:
    """ASCII only: a line separator within the text cannot end an event early."""
    return json.dumps(value).encode("ascii")


def json_parts(value: object) -> Iterator[bytes]:
    """Joined they are `json_bytes` of it. Each takes no longer than a few milliseconds, in which other threads wait, if
    no single value of it is very long."""
    if isinstance(value, dict):
        yield b"{"
        for number, (key, inner) in enumerate(value.items()):
            yield b", " * (number > 0) + json_bytes(key) + b": "
            yield from json_parts(inner)
        yield b"}"
    elif isinstance(value, list):
        yield b"["
        if len(value) > _PART:
            for first in range(0, len(value), _PART):
                yield b", " * (first > 0) + json_bytes(value[first : first + _PART])[1:-1]
        else:
            for number, inner in enumerate(value):
                yield b", " * (number > 0)
                yield from json_parts(inner)
        yield b"]"
    else:
        yield json_bytes(value)


def event(value: object) -> bytes:
    """A server-sent event."""
    return b"data: " + json_bytes(value) + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    """A server-sent event that has a name."""
    return b"event: " + name.encode("ascii") + b"\n" + event(value)


def json_line(value: object) -> bytes:
    """A value of a stream of JSON."""
    return json_bytes(value) + b"\n"


def numbered(number: int, frame: bytes) -> bytes:
    """The event with the number by which clients say that they have it."""
    return b"id: %d\n%b" % (number, frame)


def comment(text: str) -> bytes:
    """What clients do not take for a part of the answer. No empty line follows: OpenAI's client for Python takes it for
    an event as soon as it has heard a number, and fails as that has no data."""
    return f": {sanitised_line(text)}\n".encode()
