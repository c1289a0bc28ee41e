"""The hashes of a blob: a record (sha256, crc32) per range, in the order of the layout. A blob's id is the sha256 of
its layout and this table, so the id vouches for every range."""

import hashlib
import json
import re
import struct
from collections.abc import Iterable
from pathlib import Path

from tpiedge.errors import IntegrityError, ReadFault, UserError
from tpiedge.kernels.shared_library import crc32
from tpiedge.pack.files import open_regular
from tpiedge.pack.layout import BlobLayout

_RECORD = struct.Struct("<32sI")
RECORD_BYTES = _RECORD.size
_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)


class HashTable:
    """The records of one blob, by `HashedRange.index`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @staticmethod
    def load(path: Path, layout: BlobLayout, blob: str) -> "HashTable":
        """Reads the table of the blob with id `blob`. Raises UserError, ReadFault, IntegrityError."""
        try:
            with open(open_regular(path), "rb") as file:
                data = file.read(layout.range_count * RECORD_BYTES + 1)
        except FileNotFoundError:
            raise UserError(f"the pack lacks {path}: delete the pack and pack again") from None
        except OSError as error:
            raise ReadFault(path, 0, layout.range_count * RECORD_BYTES, error.strerror or "") from None
        if len(data) != layout.range_count * RECORD_BYTES or blob_id(layout, data) != blob:
            raise IntegrityError(path, "the table of hashes")
        return HashTable(data)

    def sha256(self, index: int) -> bytes:
        return self._data[index * RECORD_BYTES : index * RECORD_BYTES + 32]

    def crc32(self, index: int) -> int:
        record: tuple[bytes, int] = _RECORD.unpack_from(self._data, index * RECORD_BYTES)
        return record[1]

    def matches(self, index: int, parts: Iterable[memoryview], fast: bool) -> bool:
        """Whether the bytes of a range have its hash: crc32 if `fast`, else sha256."""
        sha, crc = hashlib.sha256(), 0
        for part in parts:
            if fast:
                crc = crc32(part, crc)
            else:
                sha.update(part)
        return crc == self.crc32(index) if fast else sha.digest() == self.sha256(index)


class RangeHasher:
    """Hashes the bytes of a blob as they pass, range by range."""

    def __init__(self, lengths: Iterable[int]) -> None:
        self._lengths = iter(lengths)
        self._left = next(self._lengths, 0)
        self._sha = hashlib.sha256()
        self._crc = 0
        self._records = bytearray()

    def update(self, data: memoryview) -> None:
        while len(data):
            if not self._left:
                raise ValueError("more bytes than the layout has")
            part = data[: self._left]
            self._sha.update(part)
            self._crc = crc32(part, self._crc)
            data = data[len(part) :]
            self._left -= len(part)
            if not self._left:
                self._records += _RECORD.pack(self._sha.digest(), self._crc)
                self._sha, self._crc = hashlib.sha256(), 0
                self._left = next(self._lengths, 0)

    def table(self) -> bytes:
        if self._left:
            raise ValueError("fewer bytes than the layout has")
        return bytes(self._records)


def blob_id(layout: BlobLayout, table: bytes) -> str:
    """Returns 64 hexadecimal digits that name a blob by its content."""
    descriptor = json.dumps(layout.descriptor(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(descriptor.encode() + b"\0" + table).hexdigest()


def is_blob_id(text: object) -> bool:
    """Whether `text` is a blob's id, and so safe as a file name."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None
