"""Parts of an answer as bytes: JSON, and the events of a stream."""

import json

from tpiedge.sanitise import sanitised_line

__all__ = [
    "EVENT_STREAM",
    "JSON_LINES",
    "Json",
    "comment",
    "event",
    "json_bytes",
    "json_line",
    "named_event",
    "numbered",
]

Json = dict[str, object]
"""An object of JSON."""
EVENT_STREAM = b"text/event-stream; charset=utf-8"
JSON_LINES = b"application/x-ndjson"


def json_bytes(value: object) -> bytes:
    """ASCII only: a line separator within the text cannot end an event early."""
    return json.dumps(value).encode("ascii")


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
    """What clients do not take for a part of the answer."""
    return f": {sanitised_line(text)}\n\n".encode()
