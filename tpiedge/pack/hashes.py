"""Keeps a blob's table of hashes: a pair (sha256, crc32) per range, in the order of the layout. A blob's id is the
sha256 of its layout and its table, so the id vouches for every range."""

import hashlib
import json
import struct
from collections.abc import Iterable
from pathlib import Path

from tpiedge.errors import IntegrityError, ReadFault, UserError
from tpiedge.kernels.shared_library import crc32
from tpiedge.pack.files import open_regular
from tpiedge.pack.layout import BlobLayout

_RECORD = struct.Struct("<32sI")
RECORD_BYTES = _RECORD.size


class HashTable:
    """A blob's pairs of hashes by `HashedRange.index`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @staticmethod
    def load(path: Path, layout: BlobLayout, blob: str) -> "HashTable":
        """Reads and checks the table of the blob with id `blob`. Raises UserError, ReadFault, IntegrityError."""
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

    def record(self, index: int) -> tuple[bytes, int]:
        found: tuple[bytes, int] = _RECORD.unpack_from(self._data, index * RECORD_BYTES)
        return found

    def matches(self, index: int, parts: Iterable[memoryview], fast: bool) -> bool:
        """Whether the bytes in `parts` have the hash of range `index`. Compares crc32 if `fast`, else sha256."""
        sha, crc = hashlib.sha256(), 0
        for part in parts:
            if fast:
                crc = crc32(part, crc)
            else:
                sha.update(part)
        expected_sha, expected_crc = self.record(index)
        if fast:
            return crc == expected_crc
        return sha.digest() == expected_sha


def record_of(content: memoryview) -> bytes:
    return _RECORD.pack(hashlib.sha256(content).digest(), crc32(content))


def blob_id(layout: BlobLayout, table: bytes) -> str:
    """Returns a blob's id: 64 hexadecimal digits."""
    descriptor = json.dumps(layout.descriptor(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(descriptor.encode() + b"\0" + table).hexdigest()
