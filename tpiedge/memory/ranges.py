"""Read jobs for the ranges of a blob, with their checksums."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpiedge.memory.reader import DirectFile, ReadJob
from tpiedge.pack.hashes import HashTable
from tpiedge.pack.layout import Range
from tpiedge.pack.reader import check_range

__all__ = ["RangeCheck", "read_jobs"]

_JOB_BYTES = 8 << 20


@dataclass(frozen=True)
class RangeCheck:
    """Checks adjacent ranges of one blob that were read together. Raises IntegrityError."""

    path: Path
    ranges: Sequence[Range]
    hashes: HashTable

    def __call__(self, data: memoryview) -> None:
        start = self.ranges[0].offset
        for item in self.ranges:
            at = item.offset - start
            check_range(self.path, item, self.hashes, data[at : at + item.length])


def read_jobs(
    file: DirectFile, ranges: Sequence[Range], hashes: HashTable, into: memoryview
) -> Iterator[ReadJob]:
    """Jobs that fill `into` with the adjacent `ranges`, some megabytes each, whole ranges only."""
    filled = 0
    for group in _groups(ranges):
        length = sum(item.length for item in group)
        check = RangeCheck(file.path, group, hashes)
        yield ReadJob(file, group[0].offset, into[filled : filled + length], check)
        filled += length


def _groups(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    group: list[Range] = []
    size = 0
    for item in ranges:
        if group and size + item.length > _JOB_BYTES:
            yield group
            group, size = [], 0
        group.append(item)
        size += item.length
    if group:
        yield group
