"""Messages to bytes and back: MessagePack `[PROTOCOL, tag, field, field, ...]`, or the short form of `flat.py`
for the messages of every block. Each message has one form.

Everything that is not exactly one valid message raises ProtocolError, on both sides, before it has any
effect.
"""

from functools import cache
from typing import Any, cast

import msgpack

from tpiedge.errors import ProtocolError
from tpiedge.wire.flat import FLAT_MARK, FlatForm, flat_form
from tpiedge.wire.join import JOIN_PROTOCOL, JOIN_TAGS
from tpiedge.wire.limits import MAX_ARRAY, MAX_CONTROL_HEADER
from tpiedge.wire.messages import PROTOCOL, TAGS, Message
from tpiedge.wire.schema import schema_of
from tpiedge.wire.structure import check_structure
from tpiedge.wire.tensors import TensorHeader

_TAG_OF: dict[Any, int] = {cls: tag for tag, cls in TAGS.items()}
_PARSE_ERRORS = (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException)


def encode(message: Message, limit: int = MAX_CONTROL_HEADER) -> bytes:
    """Bytes that `decode` turns into an equal message; ProtocolError where a field is out of bounds."""
    kind: Any = type(message)
    try:
        tag = _TAG_OF[kind]
        flat = flat_form(kind)
        if flat is not None:
            data = flat.write(PROTOCOL, tag, message)
        else:
            data = cast(bytes, msgpack.packb((_protocol_of(tag), tag, *schema_of(kind).write(message))))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"cannot send this: {error}") from error
    except KeyError:
        raise ProtocolError(f"cannot send this: {kind.__name__} is no message of its own") from None
    if len(data) > limit:
        raise ProtocolError(f"a {kind.__name__} of {len(data)} bytes; at most {limit} may be sent")
    return data


def decode(data: bytes | bytearray | memoryview, limit: int = MAX_CONTROL_HEADER) -> Message:
    """The message that `data` holds, entirely."""
    if len(data) > limit:
        raise ProtocolError(f"a message of {len(data)} bytes; at most {limit} are allowed")
    try:
        if len(data) > 2 and data[0] == FLAT_MARK:
            _check_protocol(data[1], data[2])
            return cast(Message, _form_of(data[2]).read(data))
        tag, fields = _parse(data)
        cls: Any = TAGS.get(tag)
        if cls is None or flat_form(cls) is not None:
            raise ProtocolError(f"unknown message tag {tag}")
        return cast(Message, schema_of(cls).read(fields))
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def tensors_of(message: Message) -> tuple[TensorHeader, ...]:
    """The headers of the tensors that travel with `message`, in order."""
    kind: Any = type(message)
    return tuple([header for name in _tensor_fields(kind) if (header := getattr(message, name)) is not None])


def _parse(data: bytes | bytearray | memoryview) -> tuple[int, Any]:
    try:
        check_structure(data)
        items = msgpack.unpackb(
            data,
            use_list=False,
            max_array_len=MAX_ARRAY,
            max_map_len=0,
            max_ext_len=0,
        )
    except _PARSE_ERRORS as error:
        raise ProtocolError(f"not MessagePack within the limits: {type(error).__name__} {error}") from None
    if type(items) is not tuple or len(items) < 2 or type(items[0]) is not int or type(items[1]) is not int:
        raise ProtocolError("not a message: no protocol number and tag")
    _check_protocol(items[0], items[1])
    return items[1], items[2:]


def _protocol_of(tag: int) -> int:
    return JOIN_PROTOCOL if tag in JOIN_TAGS else PROTOCOL


def _check_protocol(number: int, tag: int) -> None:
    if number != _protocol_of(tag):
        raise ProtocolError(
            f"the peer speaks protocol {number}, this node {PROTOCOL}: install the same tpiedge on both"
        )


def _form_of(tag: int) -> FlatForm:
    cls: Any = TAGS.get(tag)
    form = None if cls is None else flat_form(cls)
    if form is None:
        raise ProtocolError(f"unknown message tag {tag} of the short form")
    return form


@cache
def _tensor_fields(cls: type) -> tuple[str, ...]:
    hints = schema_of(cls)
    annotations = cls.__annotations__
    return tuple(name for name in hints.names if annotations[name] in (TensorHeader, TensorHeader | None))
