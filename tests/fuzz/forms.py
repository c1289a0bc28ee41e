"""The structures that inputs hold, as lists, dicts and scalars that can be changed and written again."""

import hashlib
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True)
class Form:
    """`parse` and `write` raise what they like for an input, or a tree, that is not of this form."""

    parse: Callable[[bytes], Any]
    write: Callable[[Any], bytes]


def _json_bytes(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def _safetensors_tree(data: bytes) -> Any:
    length = int.from_bytes(data[:8], "little")
    return [json.loads(data[8 : 8 + length]), data[8 + length :]]


def _safetensors_bytes(tree: Any) -> bytes:
    header, data = tree
    raw = _json_bytes(header)
    return struct.pack("<Q", len(raw)) + raw + data


def _manifest_bytes(tree: Any) -> bytes:
    """Returns the JSON of `tree` with the right checksum, as a hostile manifest has it."""
    if isinstance(tree, dict) and isinstance(tree.get("manifest"), dict):
        canonical = json.dumps(tree["manifest"], sort_keys=True, separators=(",", ":"))
        tree = tree | {"checksum": hashlib.sha256(canonical.encode()).hexdigest()}
    return _json_bytes(tree)


_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<B",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, kind: str) -> Any:
        (value,) = struct.unpack_from(kind, self.data, self.at)
        self.at += struct.calcsize(kind)
        return value

    def text(self) -> bytes:
        count = self.number("<Q")
        if count > len(self.data):
            raise ValueError("too long")
        self.at += count
        return self.data[self.at - count : self.at]

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_SCALARS[kind])
        inner, count = self.number("<I"), self.number("<Q")
        if count > len(self.data):
            raise ValueError("too long")
        return [inner, [self.value(inner) for _ in range(count)]]


def _gguf_tree(data: bytes) -> Any:
    """[version, [[key, type, value]], [[name, sizes, type, offset]], the tensors' bytes]."""
    cursor = _Cursor(data)
    cursor.at = 4
    version, tensor_count, key_count = cursor.number("<I"), cursor.number("<Q"), cursor.number("<Q")
    keys, tensors = [], []
    for _ in range(key_count):
        key, kind = cursor.text(), cursor.number("<I")
        keys.append([key, kind, cursor.value(kind)])
    for _ in range(tensor_count):
        name = cursor.text()
        sizes = [cursor.number("<Q") for _ in range(cursor.number("<I"))]
        tensors.append([name, sizes, cursor.number("<I"), cursor.number("<Q")])
    return [version, keys, tensors, data[-(-cursor.at // 32) * 32 :]]


def _gguf_bytes(tree: Any) -> bytes:
    version, keys, tensors, rest = tree
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(keys))]
    for key, kind, value in keys:
        parts += [_gguf_text(key), struct.pack("<I", kind), _gguf_value(kind, value)]
    for name, sizes, kind, offset in tensors:
        parts += [_gguf_text(name), struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)]
    head = b"".join(parts)
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + rest


def _gguf_text(text: Any) -> bytes:
    raw = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def _gguf_value(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _gguf_text(value)
    if kind == _ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_gguf_value(inner, item) for item in items)
    try:
        return struct.pack(_SCALARS[kind], value)
    except struct.error:
        raise ValueError("no such number") from None


_WORD = re.compile(r"\w+|\s+|[^\w\s]{2}|.", re.DOTALL)


def _text_bytes(tree: Any) -> bytes:
    return "".join(map(str, tree)).encode("utf-8", "replace")


JSON = Form(json.loads, _json_bytes)
SAFETENSORS = Form(_safetensors_tree, _safetensors_bytes)
MANIFEST = Form(json.loads, _manifest_bytes)
MESSAGEPACK = Form(msgspec.msgpack.decode, msgspec.msgpack.encode)
GGUF = Form(_gguf_tree, _gguf_bytes)
TEXT = Form(lambda data: _WORD.findall(data.decode()), _text_bytes)
