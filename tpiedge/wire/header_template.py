"""Headers of messages that differ in their place alone: encoded once, then only the place is filled in."""

import struct
from typing import Final

from tpiedge.errors import ProtocolError
from tpiedge.wire.codec import encode
from tpiedge.wire.data import Partial, Reduced

_PLACE: Final = struct.Struct("<QII")
# Behind the mark, the protocol, the tag and the epoch (flat.py).
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
