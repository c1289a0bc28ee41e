"""Reads the header of a GGUF file (versions 2 and 3, little-endian). The file is refused unless:

1. the header lies in the file, within MAX_HEADER_BYTES, MAX_TENSORS and MAX_KEYS;
2. no key and no tensor's name occurs twice;
3. every tensor begins at a multiple of the alignment;
4. every tensor ends in the file, and no two tensors overlap.

No memory is allocated for a length beyond these limits. The first part of a split file has the keys. Every part
describes its own tensors.
"""

import hashlib
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec
import numpy as np

from tpiedge.errors import UserError
from tpiedge.model.folder import ConfigFields
from tpiedge.model.gguf.names import parts_of
from tpiedge.pack.files import open_regular
from tpiedge.pack.quantised import BLOCKS, BlockTensor
from tpiedge.sanitise import quote
from tpiedge.units import MIB, format_bytes

MAX_TENSORS = 50_000
MAX_KEYS = 10_000
_MAX_PARTS = 1000
# A vocabulary of 262,000 tokens with merges takes 15 MB, and 60 bytes more for each text in memory.
MAX_HEADER_BYTES = 64 * MIB

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# Types of tensors in the format; those in BLOCKS can be read.
_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True)
class GgufHeader:
    """`fields` has the values by key; arrays are numpy arrays or lists of texts. `digest` changes with the file."""

    path: Path
    fields: ConfigFields
    tensors: Mapping[str, BlockTensor]
    digest: str


def read_gguf_header(path: Path) -> GgufHeader:
    """Reads and checks the header. If `path` is the first of several parts, reads all headers."""
    first = _read_header(path)
    count = first.fields.integer("split.count", 0, _MAX_PARTS, 1)
    if count < 2:
        return first
    names = parts_of(path.name, count)
    if not names or first.fields.integer("split.no", 0, _MAX_PARTS, 0):
        raise UserError(
            f"{path} is one part of several: give the first, whose name ends in -00001-of-{count:05}.gguf, with the "
            "others beside it"
        )
    parts = [first, *(_read_header(path.with_name(name)) for name in names[1:])]
    tensors: dict[str, BlockTensor] = {}
    for number, part in enumerate(parts):
        own = [part.fields.integer(key, 0, _MAX_PARTS, -1) for key in ("split.no", "split.count")]
        if own != [number, count] or tensors.keys() & part.tensors.keys():
            raise UserError(f"{part.path} is not part {number + 1} of {path.name}: get all parts again")
        tensors |= part.tensors
    digest = hashlib.sha256("".join(part.digest for part in parts).encode()).hexdigest()
    return GgufHeader(path, first.fields, tensors, digest)


def _read_header(path: Path) -> GgufHeader:
    try:
        with os.fdopen(open_regular(path), "rb", buffering=MIB) as file:
            return _Parser(path, file).header()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; name a GGUF file") from None


class _Parser:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._stat = os.fstat(file.fileno())
        self._limit = min(self._stat.st_size, MAX_HEADER_BYTES)
        self._at = 0
        self._texts = 0
        self._digest = hashlib.sha256(f"{self._stat.st_size} {self._stat.st_mtime_ns}\n".encode())

    def header(self) -> GgufHeader:
        tensor_count, key_count = self._counts()
        values: dict[str, object] = {}
        for _ in range(key_count):
            key = self._name(65_535)
            if key in values:
                self.refuse(f"the key {quote(key)} occurs twice")
            values[key] = self._value(key, self._number("I"))
        align = values.get("general.alignment", 32)
        if not isinstance(align, int) or not 1 <= align <= 1 << 20 or align & (align - 1):
            self.refuse(f"general.alignment is {quote(align)}, not a power of two")
        tensors = self._placed(self._described(tensor_count), align)
        fields = ConfigFields(str(self._path), values)
        return GgufHeader(self._path, fields, tensors, self._digest.hexdigest())

    def refuse(self, problem: str) -> NoReturn:
        raise UserError(f"{self._path}: {problem}; the file is damaged: download it again")

    def _counts(self) -> tuple[int, int]:
        if self._stat.st_size < 24 or self._bytes(4) != b"GGUF":
            raise UserError(f"{self._path} is not a GGUF file")
        version = self._number("I")
        if version not in (2, 3):
            raise UserError(
                f"{self._path}: version {version} of GGUF; 2 and 3 can be read, little-endian: convert the model anew"
            )
        tensors, keys = self._number("Q"), self._number("Q")
        if tensors > MAX_TENSORS or keys > MAX_KEYS:
            self.refuse(f"{tensors} tensors and {keys} keys, more than {MAX_TENSORS} and {MAX_KEYS}")
        return tensors, keys

    def _value(self, key: str, kind: int) -> object:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            self.refuse(f"the key {quote(key)} has a value of the unknown type {kind}")
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            self._texts += count
            if self._texts > 4_000_000:
                self.refuse(f"the key {quote(key)} lists {count} texts, more than any model needs")
            return [self._text() for _ in range(count)]
        if kind not in _SCALARS:
            self.refuse(f"the key {quote(key)} is an array of the unsupported type {kind}")
        dtype = np.dtype("<" + _SCALARS[kind])
        return np.frombuffer(self._bytes(count * dtype.itemsize), dtype)

    def _described(self, count: int) -> dict[str, BlockTensor]:
        found: dict[str, BlockTensor] = {}
        for _ in range(count):
            name = self._name(256)
            if name in found:
                self.refuse(f"the tensor {quote(name)} occurs twice")
            dimensions = self._number("I")
            if not 1 <= dimensions <= 4:
                self.refuse(f"the tensor {quote(name)} has {dimensions} dimensions")
            shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]  # row-major
            number = self._number("I")
            kind = _TYPES.get(number, str(number))
            if kind not in BLOCKS:
                raise UserError(
                    f"{self._path}: the tensor {quote(name)} is of the type {kind}; can be read: {', '.join(BLOCKS)}: "
                    "get the model in one of these"
                )
            per_block, _ = BLOCKS[kind]
            if min(shape) < 1 or shape[-1] % per_block:
                self.refuse(
                    f"the tensor {quote(name)} has the shape {shape}, not whole blocks of {per_block}"
                )
            found[name] = BlockTensor(kind, shape, self._path, self._number("Q"))
        return found

    def _placed(self, described: Mapping[str, BlockTensor], align: int) -> dict[str, BlockTensor]:
        start = -(-self._at // align) * align
        tensors: dict[str, BlockTensor] = {}
        end, before = start, ""
        for name, tensor in sorted(described.items(), key=lambda item: item[1].offset):
            place = start + tensor.offset
            if tensor.offset % align or place < end:
                self.refuse(
                    f"the tensor {quote(name)} lies in the way of {quote(before) if before else 'another'}"
                )
            end, before = place + math.prod(tensor.shape[:-1]) * tensor.row_nbytes, name
            if end > self._stat.st_size:
                self.refuse(
                    f"the tensor {quote(name)} ends at byte {end}, but the file has {self._stat.st_size}"
                )
            tensors[name] = msgspec.structs.replace(tensor, offset=place)
        return tensors

    def _name(self, limit: int) -> str:
        name = self._text()
        if not name or len(name) > limit or not name.isprintable():
            self.refuse(f"the name {quote(name)} is empty, too long or unprintable")
        return name

    def _text(self) -> str:
        # Some vocabularies have tokens that are not UTF-8, which a tokenizer.json cannot hold either.
        return self._bytes(self._number("Q")).decode("utf-8", "replace")

    def _number(self, kind: str) -> int:
        data = self._bytes(struct.calcsize("<" + kind))
        number: int = struct.unpack("<" + kind, data)[0]
        return number

    def _bytes(self, count: int) -> bytes:
        if count > self._limit - self._at:
            if self._limit < self._stat.st_size:
                self.refuse(f"the header has more than {format_bytes(MAX_HEADER_BYTES)}")
            self.refuse(f"the header goes beyond the file's {self._stat.st_size} bytes")
        data = self._file.read(count)
        if len(data) < count:
            self.refuse("the file became shorter while it was read")
        self._at += count
        self._digest.update(data)
        return data
