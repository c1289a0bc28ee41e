"""Headers of messages that differ in their place alone: encoded once, then only the place is filled in."""

import struct
from typing import Final

from tpiedge.errors import ProtocolError
from tpiedge.wire.codec import encode
from tpiedge.wire.data import Partial, Reduced

__all__ = ["Stencil"]

_PLACE: Final = struct.Struct("<QII")
# Behind the mark, the protocol, the tag and the epoch (flat.py).
_PLACE_AT: Final = 3 + 4


class Stencil:
    """`at` is what `encode` gives for `message` at another step, block and chunk, and a fraction of its work."""

    def __init__(self, message: Partial | Reduced) -> None:
        self._header = bytearray(encode(message))

    def at(self, step: int, block: int, chunk: int) -> bytes:
        try:
            _PLACE.pack_into(self._header, _PLACE_AT, step, block, chunk)
        except struct.error as error:
            raise ProtocolError(
                f"no message has step {step}, block {block}, chunk {chunk}: {error}"
            ) from None
        return bytes(self._header)
