"""How much a MessagePack message makes of itself, found out before any of it is made.

The parser allocates an array before it has seen its elements, nests up to 1024 deep, and makes of two or three bytes an
object of fifty: a message within its limit of bytes could take twenty times as much memory. So its items are
counted first; what is inside a string or a binary is passed over.
"""

from typing import Final

from tpiedge.wire.limits import MAX_DEPTH, MAX_ITEMS, MAX_STRINGS

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
