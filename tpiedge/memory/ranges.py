"""Read jobs for the ranges of a blob, with their checksums."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpiedge.memory.reader import DirectFile, ReadJob
from tpiedge.pack.hashes import HashTable
from tpiedge.pack.layout import HashedRange
from tpiedge.pack.reader import check_range

_JOB_BYTES = 8 << 20


@dataclass(frozen=True)
class RangeCheck:
    """Adjacent ranges of one blob that are read together; called with their bytes, it raises IntegrityError if one of
    them is damaged."""

    path: Path
    ranges: Sequence[HashedRange]
    hashes: HashTable

    @property
    def offset(self) -> int:
        """In the blob."""
        return self.ranges[0].offset

    @property
    def length(self) -> int:
        return self.ranges[-1].offset + self.ranges[-1].length - self.offset

    def __call__(self, data: memoryview) -> None:
        start = self.offset
        for item in self.ranges:
            at = item.offset - start
            check_range(self.path, item, self.hashes, data[at : at + item.length])


def range_checks(path: Path, ranges: Iterable[HashedRange], hashes: HashTable) -> Iterator[RangeCheck]:
    """The adjacent `ranges` of the blob at `path` in groups of some megabytes, whole ranges only."""
    group: list[HashedRange] = []
    size = 0
    for item in ranges:
        if group and size + item.length > _JOB_BYTES:
            yield RangeCheck(path, tuple(group), hashes)
            group, size = [], 0
        group.append(item)
        size += item.length
    if group:
        yield RangeCheck(path, tuple(group), hashes)


def read_jobs(file: DirectFile, checks: Iterable[RangeCheck], into: memoryview) -> Iterator[ReadJob]:
    """Jobs that fill `into` with what the adjacent `checks` cover, one each."""
    filled = 0
    for check in checks:
        length = check.length
        yield ReadJob(file, check.offset, into[filled : filled + length], check)
        filled += length
