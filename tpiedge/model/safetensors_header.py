"""The header of a safetensors file, checked before a byte of it is believed.

Format: 8 bytes of little-endian header length n, n bytes of JSON (name -> dtype, shape, data_offsets), then
the tensors' bytes. Laws that a file must keep, or it is refused with its name and the tensor's:

1. the header lies in the file and has at most MAX_HEADER_BYTES and MAX_TENSORS;
2. no name occurs twice;
3. a tensor's byte count is its shape times its dtype's size;
4. the tensors cover the rest of the file exactly: no overlap, no hole, nothing after the last.

The format's own library is not asked here: it accepts 300,000 tensors, duplicate names and names like `../x`, and does
not say where in the file a tensor's bytes are, which packing reads past the page cache (pack/sources/source_file.py).
"""

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import BinaryIO, NoReturn

from tpiedge.errors import UserError
from tpiedge.model.folder import parse_json
from tpiedge.sanitise import quote
from tpiedge.units import format_bytes

MAX_TENSORS = 50_000
# 200 bytes per tensor; the header of a 70B model has 0.1 MB. (The format itself allows 100 MB.) Parsing takes up to
# nine times as much memory: one wide character widens the text, and again the value that it stands in.
MAX_HEADER_BYTES = 10_000_000
_MAX_COMMAS = 8 * MAX_TENSORS
_MAX_DIMENSIONS = 16
_MAX_NAME = 512
_LENGTH_BYTES = 8

_DTYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "C64": 8,
    "F32": 4, "I32": 4, "U32": 4,
    "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "BOOL": 1, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip


@dataclass(frozen=True)
class HeaderEntry:
    """One tensor; `offset` is in bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """The tensors of one file and the sha256 of its header."""

    entries: Mapping[str, HeaderEntry]
    digest: str


def read_header(file: BinaryIO, where: str) -> Header:
    """Read and check the header of `file`, named `where` in messages. Raises UserError."""
    size = os.fstat(file.fileno()).st_size
    raw = _header_bytes(file, size, where)
    if raw.count(b",") > _MAX_COMMAS:  # before parsing, which takes memory by the number of values
        _refuse(where, f"the header lists more than {MAX_TENSORS} tensors")
    values = dict(parse_json(raw, f"{where}, header", unique_keys=True))
    _check_metadata(values.pop("__metadata__", None), where)
    if len(values) > MAX_TENSORS:
        _refuse(where, f"the header lists {len(values)} tensors, more than {MAX_TENSORS}")
    start = _LENGTH_BYTES + len(raw)
    entries = {name: _entry(name, value, start, where) for name, value in values.items()}
    _check_coverage(entries, start, size, where)
    return Header(MappingProxyType(entries), hashlib.sha256(raw).hexdigest())


def _header_bytes(file: BinaryIO, size: int, where: str) -> bytes:
    prefix = file.read(_LENGTH_BYTES)
    if len(prefix) < _LENGTH_BYTES:
        _refuse(where, f"the file has {len(prefix)} bytes, too few for a header")
    length = int.from_bytes(prefix, "little")
    if length > size - _LENGTH_BYTES:
        _refuse(where, f"the header claims {length} bytes, more than the file has ({size})")
    if length > MAX_HEADER_BYTES:
        _refuse(where, f"the header has {format_bytes(length)}, more than {format_bytes(MAX_HEADER_BYTES)}")
    raw = file.read(length)
    if len(raw) < length:
        _refuse(where, "the file became shorter while it was read")
    return raw


def _check_metadata(value: object, where: str) -> None:
    if value is None:
        return
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        _refuse(where, "__metadata__ is not an object of texts")


def _entry(name: str, value: object, start: int, where: str) -> HeaderEntry:
    here = f"{where}, tensor {quote(name, 100)}"
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        _refuse(here, "the name is empty, too long or unprintable")
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        _refuse(here, "not an object of dtype, shape and data_offsets")
    dtype, shape = value["dtype"], value["shape"]
    if not isinstance(dtype, str) or dtype not in _DTYPE_BYTES:
        _refuse(here, f"the dtype is {quote(dtype)}; known are {', '.join(_DTYPE_BYTES)}")
    if not _are_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        _refuse(here, f"the shape is {quote(shape)}")
    offsets = value["data_offsets"]
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(here, f"data_offsets are {quote(offsets)}")
    first, stop = offsets
    nbytes = math.prod(shape) * _DTYPE_BYTES[dtype]
    if nbytes != stop - first:
        _refuse(here, f"{dtype} {quote(shape)} takes {quote(nbytes)} bytes, data_offsets give {stop - first}")
    return HeaderEntry(dtype, tuple(shape), start + first, nbytes)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 1 << 62 for number in value)


def _check_coverage(entries: Mapping[str, HeaderEntry], start: int, size: int, where: str) -> None:
    position = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        here = f"{where}, tensor {quote(name, 100)}"
        if entry.offset < position:
            _refuse(here, "overlaps the tensor before it")
        if entry.offset > position:
            _refuse(here, f"{entry.offset - position} unused bytes lie before it")
        position += entry.nbytes
        if position > size:
            _refuse(here, f"ends at byte {position}, but the file has {size} (an unfinished download?)")
    if position != size:
        _refuse(where, f"{size - position} bytes lie after the last tensor")


def _refuse(where: str, problem: str) -> NoReturn:
    raise UserError(f"{where}: {problem}; the file is damaged: download it again")
