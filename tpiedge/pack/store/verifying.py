"""Ranges on disk against their hashes."""

from collections.abc import Sequence
from pathlib import Path

from tpiedge.errors import ReadFault
from tpiedge.pack.files import read_parts
from tpiedge.pack.hashes import HashTable
from tpiedge.pack.layout import Range

__all__ = ["bad_ranges"]

_CHUNK = 4 << 20


def bad_ranges(fd: int, path: Path, ranges: Sequence[Range], hashes: HashTable, fast: bool) -> list[Range]:
    """Those of `ranges` that cannot be read or do not have their hash: crc32 if `fast`, else sha256."""
    buffer = memoryview(bytearray(min(_CHUNK, max((item.length for item in ranges), default=0))))
    return [item for item in ranges if not _matches(fd, path, item, hashes, buffer, fast)]


def _matches(fd: int, path: Path, item: Range, hashes: HashTable, buffer: memoryview, fast: bool) -> bool:
    try:
        return hashes.matches(item.index, read_parts(fd, path, item.offset, item.length, buffer), fast)
    except ReadFault:
        return False
