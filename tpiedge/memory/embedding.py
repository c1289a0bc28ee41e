"""The embedding table, read row by row: only rows that tokens ask for come into memory."""

import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tpiedge.errors import InternalError, UserError
from tpiedge.kernels.panels import PANEL
from tpiedge.kernels.quantise import dequantise_output
from tpiedge.memory.ranges import range_checks, read_jobs
from tpiedge.memory.reader import DirectFile, DirectReader
from tpiedge.pack.dtypes import STORED, Array, f32_from_bf16, numpy_dtype
from tpiedge.pack.files import array_bytes, open_regular, read_exactly
from tpiedge.pack.layout import MatrixLayout, PanelLayout, Precision, RowLayout
from tpiedge.pack.reader import Pack


class EmbeddingTable:
    """Rows of the pack's embedding on disk. A unit's checksum is checked before its first row is used.

    `bytes_read` counts what was read for rows, `bytes_checked` for the checksums. A quantised row is read with the 15
    others of its panel. One thread at a time.
    """

    def __init__(self, pack: Pack, reader: DirectReader) -> None:
        self.bytes_read = 0
        self.bytes_checked = 0
        self._matrix = pack.layout("embedding").matrix("embedding")
        self._path = pack.blob_path("embedding")
        self._hashes = pack.hashes("embedding")
        self._reader = reader
        self._checked: set[int] = set()
        self._fd = _open_random(self._path)

    def rows(self, ids: Sequence[int]) -> torch.Tensor:
        """[T, H] in f32. Raises UserError for an id that the vocabulary lacks, ReadFault, IntegrityError."""
        matrix = self._matrix
        places = [_place(matrix, row) for row in ids]
        self._check({row // matrix.rows_per_unit for row in ids} - self._checked)
        found_TH = np.empty((len(ids), matrix.cols), np.float32)
        for row, (offset, length), found_H in zip(ids, places, found_TH, strict=True):
            stored = np.empty(length, np.uint8)
            read_exactly(self._fd, self._path, offset, array_bytes(stored))
            found_H[:] = _row(matrix, row, stored)
            self.bytes_read += length
        return torch.from_numpy(found_TH)

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


def _place(layout: MatrixLayout, row: int) -> tuple[int, int]:
    """(offset, length) of what holds a row in the blob. Raises UserError for a row that is not there."""
    match layout:
        case RowLayout():
            return layout.row_offset(row), layout.cols * layout.itemsize
        case PanelLayout():
            return layout.panel_offset(row), layout.shape(0).panel_nbytes
    raise InternalError(f"no rows are read of a {type(layout).__name__}")


def _row(layout: MatrixLayout, row: int, stored: Array) -> Array:
    """[H] in f32, of the bytes at its place."""
    if isinstance(layout, PanelLayout):
        return dequantise_output(stored, layout.shape(0), row % layout.rows_per_unit % PANEL)
    values: Array = stored.view(numpy_dtype(STORED[layout.precision]))
    return f32_from_bf16(values) if layout.precision is Precision.BF16 else values


def _open_random(path: Path) -> int:
    try:
        fd = open_regular(path)
    except OSError as error:
        raise UserError(f"cannot open {path}: {error.strerror}") from None
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return fd
