"""Messages to bytes and back. Each message has one form:

    an array of MessagePack: PROTOCOL, tag, field, field, ...
    the messages with a tensor: 0xC1, PROTOCOL, tag | integers, little-endian | dtype, dimensions, lengths | zeros

The second form has FLAT_BYTES, so the tensor follows aligned in the same frame. No MessagePack begins with 0xC1. A tag
is never used for another message; a change of any message's fields raises PROTOCOL.

Everything that is not exactly one valid message raises ProtocolError, on both sides, before it has any effect. msgspec
checks each bound before it makes what it is about, so a hostile message costs at most a few times its bytes.
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

PROTOCOL = 22

TAGS: dict[int, type[Message]] = {
    1: d.StepPlan,
    2: d.Hidden,
    3: d.Partial,
    4: d.Reduced,
    5: d.Gathered,
    6: d.Slice,
    7: d.Survey,
    8: d.LinkReport,
    9: d.LeavePages,
    32: control.Hello,
    33: control.Assign,
    34: control.Listening,
    35: control.Loading,
    36: control.Ready,
    37: control.Heartbeat,
    38: control.Pulse,
    39: control.Lost,
    40: control.Generate,
    41: control.Token,
    42: control.Finished,
    43: control.Failed,
    44: control.Cancel,
    45: control.AskStats,
    46: control.Stats,
    47: control.Shutdown,
    48: control.PromptScores,
    49: control.Accused,
    50: control.Connect,
    51: control.Halt,
    52: control.Halted,
    53: control.Resume,
    54: control.Embedding,
    55: control.StepSpans,
    56: control.Compile,
    57: control.Compiled,
    64: join.Enrol,
    65: join.Enrolled,
    66: join.Refused,
    67: join.Knock,
    68: join.Challenge,
    69: join.Reveal,
    70: join.Verdict,
    80: d.Fetch,
    81: d.FileChunk,
    82: d.FetchFailed,
    96: epochs.Offer,
    97: epochs.Prepare,
    98: epochs.Preparing,
    99: epochs.Spawned,
    100: epochs.NodeEnded,
    101: epochs.Release,
    102: epochs.AgentPulse,
    103: epochs.MasterPulse,
    104: epochs.Probe,
    105: epochs.Echo,
    106: epochs.AskOffer,
    107: epochs.Prepared,
    108: epochs.Launch,
    109: epochs.Leaving,
    110: epochs.Spare,
    111: epochs.Stock,
    112: epochs.Stocked,
}

FLAT_MARK: Final = 0xC1
FLAT_BYTES: Final = 64

_TAG_OF: Final[dict[Any, int]] = {cls: tag for tag, cls in TAGS.items()}
_ENCODER: Final = msgspec.msgpack.Encoder()
# The integers of a message with a tensor, as `struct` has them.
_INTEGERS: Final[dict[Any, str]] = {
    d.Hidden: "IQI",
    d.Partial: "IQIIBB",
    d.Reduced: "IQIIB",
    d.Gathered: "IQIIB",
    d.Slice: "IQIIBBB",
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
    """Returns bytes that `decode` turns into an equal message; ProtocolError for a field out of bounds."""
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
            fields = _ENCODER.encode(message)
            _decoder(kind).decode(fields)
            data = _head(kind, tag) + fields[len(_array(kind)) :]
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, struct.error, KeyError) as error:
        raise ProtocolError(f"cannot send this {kind.__name__}: {error}") from error
    if len(data) > limit:
        raise ProtocolError(f"a {kind.__name__} of {len(data)} bytes; at most {limit} may be sent")
    return data


def decode(data: bytes | bytearray | memoryview, limit: int = MAX_CONTROL_HEADER) -> Message:
    """Returns the message in `data`; ProtocolError for anything else."""
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
        head = _head(kind, tag)
        if data[: len(head)] != head:
            raise ValueError(f"not an array of its {len(kind.__struct_fields__)} fields")
        return cast(Message, _decoder(kind).decode(b"".join((_array(kind), data[len(head) :]))))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        # What it says may quote a peer's text, of any length.
        raise ProtocolError(f"{kind.__name__}: {str(error)[:200]}") from None


def tensors_of(message: Message) -> tuple[TensorHeader, ...]:
    """Returns the header of the tensor that travels with `message`, if any."""
    header = getattr(message, "tensor", None)
    return () if header is None else (header,)


@cache
def _decoder(kind: Any) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(kind)


@cache
def _array(kind: Any, more: int = 0) -> bytes:
    """Returns the beginning of an array of all fields and `more`."""
    count = len(kind.__struct_fields__) + more
    return bytes((0x90 + count,)) if count < 16 else struct.pack(">BH", 0xDC, count)


def _head(kind: Any, tag: int) -> bytes:
    return _array(kind, 2) + bytes((_protocol_of(tag), tag))


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
    """Reads the header at the beginning of `data`, which ends in zeros."""
    if not any(data):
        return None
    dtype = _DTYPES.get(data[0])
    if dtype is None:
        raise ValueError(f"the tensor's dtype is none of {', '.join(_CODES)}")
    if data[1] > MAX_DIMENSIONS or any(data[2 + 4 * data[1] :]):
        raise ValueError(f"the tensor's shape is not at most {MAX_DIMENSIONS} lengths and then zeros")
    return TensorHeader(dtype, struct.unpack_from(f"<{data[1]}I", data, 2))


_PLACE: Final = struct.Struct("<QII")
# Behind the mark, the protocol, the tag and the epoch.
PLACE_AT: Final = 3 + 4
PLACE_BYTES: Final = _PLACE.size


def place_of(step: int, block: int, chunk: int) -> bytes:
    """Returns the bytes of a header at PLACE_AT. ProtocolError for an integer out of bounds."""
    try:
        return _PLACE.pack(step, block, chunk)
    except struct.error as error:
        raise ProtocolError(f"no message has step {step}, block {block}, chunk {chunk}: {error}") from None
