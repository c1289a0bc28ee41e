"""Messages to bytes and back: MessagePack `[PROTOCOL, tag, field, field, ...]`, or the short form of `flat.py`
for the messages of every block. Each message has one form.

Everything that is not exactly one valid message raises ProtocolError, on both sides, before it has any
effect. The parser of MessagePack allocates an array before it has seen its elements, nests up to 1024 deep, and makes
of two or three bytes an object of fifty: a message within its limit of bytes could take twenty times as much memory.
So items are counted before any is made; what is inside a string or a binary is passed over.
"""

import struct
from functools import cache
from typing import Any, Final, cast

import msgpack

from tpiedge.errors import ProtocolError
from tpiedge.wire.data import Partial, Reduced
from tpiedge.wire.flat import FLAT_MARK, FlatForm, flat_form
from tpiedge.wire.join import JOIN_PROTOCOL, JOIN_TAGS
from tpiedge.wire.limits import MAX_ARRAY, MAX_CONTROL_HEADER, MAX_DEPTH, MAX_ITEMS, MAX_STRINGS
from tpiedge.wire.messages import PROTOCOL, TAGS, Message
from tpiedge.wire.schema import schema_of
from tpiedge.wire.tensors import TensorHeader

# Bytes of an item by its first byte, where it has always the same number.
_FIXED: Final = {
    0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9,
    **dict.fromkeys(range(0x80), 1), **dict.fromkeys(range(0xE0, 0x100), 1),
    **{0xA0 + length: 1 + length for length in range(32)},
}  # fmt: skip
# Bytes of the length that follows the first byte of a string or a binary, and of an array.
_BINARIES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_STRINGS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BYTES: Final = _BINARIES | _STRINGS
_ARRAYS: Final = {**dict.fromkeys(range(0x90, 0xA0), 0), 0xDC: 2, 0xDD: 4}


def check_structure(data: bytes | bytearray | memoryview) -> None:
    """Raise ValueError for more than MAX_ITEMS items, MAX_STRINGS bytes of text, arrays more than MAX_DEPTH deep, a
    type that no message has, or bytes after the end.

    Passes whatever ends too soon: the parser says that better.
    """
    position = text_bytes = 0
    open_arrays = [1]
    for _ in range(MAX_ITEMS):
        while open_arrays and not open_arrays[-1]:
            open_arrays.pop()
        if not open_arrays and position < len(data):
            raise ValueError(f"{len(data) - position} bytes too many")
        if not open_arrays or position >= len(data):
            return
        open_arrays[-1] -= 1
        kind = data[position]
        if kind in _FIXED:
            position += _FIXED[kind]
        elif kind in _BYTES:
            body = position + 1 + _BYTES[kind]
            length = int.from_bytes(data[position + 1 : body], "big")
            position = body + length
            text_bytes += length if kind in _STRINGS else 0
            if text_bytes > MAX_STRINGS:
                raise ValueError(f"more than {MAX_STRINGS} bytes of text")
        elif kind in _ARRAYS:
            body = position + 1 + _ARRAYS[kind]
            open_arrays.append(
                int.from_bytes(data[position + 1 : body], "big") if _ARRAYS[kind] else kind & 0x0F
            )
            position = body
            if len(open_arrays) > MAX_DEPTH + 1:
                raise ValueError(f"arrays more than {MAX_DEPTH} deep")
        else:
            # Not left to the parser, which lets an empty one pass and reads on.
            raise ValueError(f"an item of a type that no message has: {kind:#x}")
    raise ValueError(f"more than {MAX_ITEMS} items")


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


_PLACE: Final = struct.Struct("<QII")
# Behind the mark, the protocol, the tag and the epoch.
PLACE_AT: Final = 3 + 4
PLACE_BYTES: Final = _PLACE.size


def place_of(step: int, block: int, chunk: int) -> bytes:
    """What a header has at PLACE_AT. ProtocolError where an integer is out of bounds."""
    try:
        return _PLACE.pack(step, block, chunk)
    except struct.error as error:
        raise ProtocolError(f"no message has step {step}, block {block}, chunk {chunk}: {error}") from None


class HeaderTemplate:
    """`at` is what `encode` gives for `message` at another step, block and chunk, and a fraction of its work."""

    def __init__(self, message: Partial | Reduced) -> None:
        self._header = bytearray(encode(message))

    def at(self, step: int, block: int, chunk: int) -> bytes:
        self._header[PLACE_AT : PLACE_AT + PLACE_BYTES] = place_of(step, block, chunk)
        return bytes(self._header)
