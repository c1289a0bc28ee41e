"""Encodes and decodes messages. A message has one of two forms:

    a MessagePack array:       PROTOCOL, tag, field, field, ...
    for messages with tensors: 0xC1, PROTOCOL, tag | little-endian integers | dtype, dimensions, lengths | zeros

The second form has FLAT_BYTES bytes; the tensor's aligned data follow. No MessagePack begins with 0xC1. No tag is used
twice. PROTOCOL grows when fields change.

Invalid input raises ProtocolError. Decoding needs memory of at most a few times the input's size.
"""

import struct
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Final, cast

import msgspec

from tpiedge.errors import ProtocolError
from tpiedge.wire import control, epochs, join
from tpiedge.wire import data as d
from tpiedge.wire.fields import MAX_CONTROL_HEADER, MAX_DIMENSIONS, DType, Message, TensorHeader
from tpiedge.wire.join import JOIN_PROTOCOL, JOIN_TAGS

PROTOCOL = 28

TAGS: Final[dict[int, type[Message]]] = {
    int(kind.__struct_config__.tag): kind
    for module in (control, d, epochs, join)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Message) and kind.__struct_config__.tag
}

FLAT_MARK: Final = 0xC1
FLAT_BYTES: Final = 64
PLACE: Final = struct.Struct("<QIII")
"""The layout of a BlockMessage's step, block, chunk and choices, which begin at byte PLACE_AT."""
# Behind the mark, the protocol, the tag and the epoch.
PLACE_AT: Final = 3 + 4

_TAG_OF: Final[dict[Any, int]] = {cls: tag for tag, cls in TAGS.items()}
_ENCODER: Final = msgspec.msgpack.Encoder()
# The integers of a message with a tensor, as formats of `struct`.
_INTEGERS: Final[dict[Any, str]] = {
    d.Hidden: "IQI",
    d.Partial: "IQIIIBB",
    d.Reduced: "IQIIIB",
    d.Gathered: "IQIIIB",
    d.Slice: "IQIIIBBB",
    d.FileChunk: "IIQ",
}
_FLAT: Final = {
    cls: (struct.Struct(f"<BBB{widths}"), attrgetter(*cls.__struct_fields__[:-1]))
    for cls, widths in _INTEGERS.items()
}
_TENSOR_MAY_LACK: Final = (d.Partial, d.Slice)
_CODES: Final[dict[DType, int]] = {"f32": 1, "bf16": 2, "i32": 4, "i64": 5, "u8": 8}
_DTYPES: Final = {code: dtype for dtype, code in _CODES.items()}


def encode(message: Message, limit: int = MAX_CONTROL_HEADER) -> bytes:
    """Encodes a message, without its tensor's data. Raises ProtocolError."""
    kind: Any = type(message)
    tag = _TAG_OF.get(kind)
    if tag is None:
        raise ProtocolError(f"cannot send this: {kind.__name__} is no message of its own")
    try:
        if kind in _FLAT:
            layout, values_of = _FLAT[kind]
            tensor = message.tensor  # type: ignore[attr-defined]
            if tensor is None and kind not in _TENSOR_MAY_LACK:
                raise ValueError("the tensor is missing")
            values = layout.pack(FLAT_MARK, PROTOCOL, tag, *values_of(message))
            data = (values + _written_header(tensor)).ljust(FLAT_BYTES, b"\0")
        else:
            body = _ENCODER.encode(message)  # an array of the tag and the fields
            _decoder(kind).decode(body)
            data = _array(kind, 2) + bytes((_protocol_of(tag),)) + body[len(_array(kind, 1)) :]
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, struct.error, KeyError) as error:
        raise ProtocolError(f"cannot send this {kind.__name__}: {error}") from error
    if len(data) > limit:
        raise ProtocolError(f"a {kind.__name__} of {len(data)} bytes; at most {limit} may be sent")
    return data


def decode(data: bytes | bytearray | memoryview, limit: int = MAX_CONTROL_HEADER) -> Message:
    """Decodes a message of at most `limit` bytes. Raises ProtocolError."""
    if len(data) > limit:
        raise ProtocolError(f"a message of {len(data)} bytes; at most {limit} are allowed")
    at = 3 if data[:1] == b"\xdc" else 1
    if len(data) < at + 2:
        raise ProtocolError(f"{len(data)} bytes are no message")
    flat = data[0] == FLAT_MARK
    number, tag = data[at], data[at + 1]
    if number != _protocol_of(tag):
        raise ProtocolError(
            f"the peer speaks protocol {number}, this node {PROTOCOL}: install the same tpiedge on both"
        )
    kind: Any = TAGS.get(tag)
    if kind is None or flat != (kind in _FLAT):
        raise ProtocolError(f"unknown message tag {tag}{' of the short form' if flat else ''}")
    try:
        if flat:
            return cast(Message, _read(kind, data))
        if data[:at] != _array(kind, 2):
            raise ValueError(f"not an array of its {len(kind.__struct_fields__)} fields")
        return cast(Message, _decoder(kind).decode(b"".join((_array(kind, 1), data[at + 1 :]))))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        # The error may quote a peer's text, of any length.
        raise ProtocolError(f"{kind.__name__}: {str(error)[:200]}") from None


def tensor_of(message: Message) -> TensorHeader | None:
    header: TensorHeader | None = getattr(message, "tensor", None)
    return header


@cache
def _decoder(kind: Any) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(kind)


@cache
def _array(kind: Any, more: int) -> bytes:
    """Returns the header of an array with `kind`'s fields and `more` items."""
    count = len(kind.__struct_fields__) + more
    return bytes((0x90 + count,)) if count < 16 else struct.pack(">BH", 0xDC, count)


def _protocol_of(tag: int) -> int:
    return JOIN_PROTOCOL if tag in JOIN_TAGS else PROTOCOL


def _read(kind: Any, data: bytes | bytearray | memoryview) -> Any:
    layout, _ = _FLAT[kind]
    if len(data) != FLAT_BYTES:
        raise ValueError(f"{len(data)} bytes, not {FLAT_BYTES}")
    header = _read_header(bytes(data[layout.size :]))
    if header is None and kind not in _TENSOR_MAY_LACK:
        raise ValueError("the tensor is missing")
    return kind(*layout.unpack_from(data)[3:], header)


@lru_cache(maxsize=64)  # most headers of a run are the same few
def _written_header(header: TensorHeader | None) -> bytes:
    if header is None:
        return b""
    shape = header.shape
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"more than {MAX_DIMENSIONS} dimensions")
    return struct.pack(f"<BB{len(shape)}I", _CODES[header.dtype], len(shape), *shape)


@lru_cache(maxsize=64)
def _read_header(data: bytes) -> TensorHeader | None:
    """Reads a tensor header; the rest of `data` must be zeros."""
    if not any(data):
        return None
    dtype = _DTYPES.get(data[0])
    if dtype is None:
        raise ValueError(f"the tensor's dtype is none of {', '.join(_CODES)}")
    if data[1] > MAX_DIMENSIONS or any(data[2 + 4 * data[1] :]):
        raise ValueError(f"the tensor's shape is not at most {MAX_DIMENSIONS} lengths and then zeros")
    return TensorHeader(dtype, struct.unpack_from(f"<{data[1]}I", data, 2))
