"""The embedding table, read row by row: only rows that tokens ask for come into memory."""

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tpiedge.errors import UserError
from tpiedge.memory.arena import DTYPES
from tpiedge.memory.ranges import range_checks, read_jobs
from tpiedge.memory.reader import DirectFile, DirectReader
from tpiedge.pack.dtypes import STORED, numpy_dtype
from tpiedge.pack.files import array_bytes, open_regular, read_exactly
from tpiedge.pack.reader import Pack

__all__ = ["EmbeddingTable"]

_ROWS = 64  # that exist twice for a moment, as stored and as f32


class EmbeddingTable:
    """Rows of the pack's embedding on disk. A unit's checksum is checked before its first row is used.

    `bytes_read` counts the rows; `bytes_checked` what was read for the checksums. One thread at a time.
    """

    def __init__(self, pack: Pack, reader: DirectReader) -> None:
        self.bytes_read = 0
        self.bytes_checked = 0
        self._matrix = pack.layout("embedding").matrix("embedding")
        self._dtype = DTYPES[pack.precision]
        self._stored = numpy_dtype(STORED[pack.precision])
        self._path = pack.blob_path("embedding")
        self._hashes = pack.hashes("embedding")
        self._reader = reader
        self._checked: set[int] = set()
        self._fd = _open_random(self._path)

    def rows(self, ids: Sequence[int]) -> torch.Tensor:
        """[T, H] in f32. Raises UserError for an id that the vocabulary lacks, ReadFault, IntegrityError."""
        matrix = self._matrix
        offsets = [matrix.row_offset(row) for row in ids]
        self._check({row // matrix.rows_per_unit for row in ids} - self._checked)
        found_TH = torch.empty((len(ids), matrix.cols))
        data = np.empty((min(len(ids), _ROWS), matrix.cols), self._stored)
        stored = torch.from_numpy(data).view(self._dtype)
        for first in range(0, len(ids), _ROWS):
            part_RH = found_TH[first : first + _ROWS]
            for place, offset in enumerate(offsets[first : first + _ROWS]):
                read_exactly(self._fd, self._path, offset, array_bytes(data[place]))
            part_RH.copy_(stored[: len(part_RH)])
        self.bytes_read += len(ids) * matrix.cols * data.itemsize
        return found_TH

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _check(self, units: set[int]) -> None:
        """Read whole units once, through a buffer of one unit, and compare them with their checksums."""
        if not units:
            return
        ranges = [next(self._matrix.ranges(unit, unit + 1)) for unit in sorted(units)]
        buffer = memoryview(mmap.mmap(-1, max(item.length for item in ranges)))
        with DirectFile(self._path) as file:
            for item in ranges:
                checks = range_checks(self._path, [item], self._hashes)
                jobs = read_jobs(file, checks, buffer[: item.length])
                self.bytes_checked += self._reader.run(jobs)
                self._checked.add(item.unit)


def _open_random(path: Path) -> int:
    try:
        fd = open_regular(path)
    except OSError as error:
        raise UserError(f"cannot open {path}: {error.strerror}") from None
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return fd
