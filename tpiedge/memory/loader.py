"""Reads weights from the pack's files: pieces to their places, and the embedding table row by row."""

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import accumulate

import numpy as np
import torch

from tpiedge.errors import Cancelled, IntegrityError, InternalError, TpiedgeError
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight
from tpiedge.kernels.panels import PANEL
from tpiedge.kernels.quantise import dequantise_output
from tpiedge.memory.arena import DTYPES, Arena, as_matrix
from tpiedge.memory.reader import DirectFile, DirectReader, grouped
from tpiedge.memory.residency import Read
from tpiedge.memory.sweep import Piece, Sweep
from tpiedge.pack.dtypes import STORED, f32_from_bf16, numpy_dtype
from tpiedge.pack.files import OpenFile
from tpiedge.pack.hashes import HashTable
from tpiedge.pack.layout import HashedRange, PanelLayout, RowLayout
from tpiedge.pack.reader import Pack, checked_ranges
from tpiedge.pack.specs import Precision
from tpiedge.tracing.tracer import LOAD, Tracer


class PieceLoader:
    """Two arenas: the first has a place for every piece, mere address space until it is filled; the second is the ring.
    `close` ends the reads before it gives the memory back.

    Raises OutOfMemory, UserError, IntegrityError (of a table of hashes).
    """

    def __init__(
        self, pack: Pack, sweep: Sweep, ring_bytes: int, reader: DirectReader, *, direct: bool = True
    ) -> None:
        self._pack = pack
        self._sweep = sweep
        self._reader = reader
        self._offsets = (0, *accumulate(piece.nbytes for piece in sweep.pieces))
        self._own = Arena(self._offsets[-1], filled=not ring_bytes)
        self._ring = Arena(ring_bytes, filled=True)
        self._files: dict[str, DirectFile] = {}
        self._hashes: dict[str, HashTable] = {}
        self._ranges: dict[int, Sequence[Sequence[HashedRange]]] = {}  # of each piece
        self._tracer: Tracer | None = None
        try:
            for key in {piece.key: None for piece in sweep.pieces}:
                blob = pack.blob_id(key)
                if blob not in self._files:
                    self._files[blob] = DirectFile(pack.blob_path(key), direct=direct)
                    self._hashes[blob] = pack.hashes(key)
        except BaseException:
            self.close()
            raise

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, by others through the same reader too."""
        return self._reader.bytes_read

    def trace(self, tracer: Tracer) -> None:
        for piece in self._sweep.pieces:
            tracer.name(piece.matrix)
        self._tracer = tracer

    def read(self, order: Read, done: Callable[[TpiedgeError | None], None]) -> None:
        """Begins a read, checked in the reading threads; any thread calls `done` once nothing is written any more."""
        piece = self._sweep.pieces[order.piece]
        blob = self._pack.blob_id(piece.key)
        arena, offset, nbytes = self._place(order.piece, order.offset)
        if order.piece not in self._ranges:  # worked out once: a piece is read again in every sweep
            matrix = self._pack.layout(piece.key).matrix(piece.matrix)
            ranges = matrix.ranges(piece.units.start, piece.units.stop)
            self._ranges[order.piece] = tuple(grouped(ranges))
        groups, timed = self._ranges[order.piece], None
        if self._tracer is not None:
            timed = functools.partial(_trace, self._tracer, piece)
        countdown = _Countdown(len(groups), done)
        into = arena.buffer(offset, nbytes)
        for job in self._reader.read_ranges(self._files[blob], groups, self._hashes[blob], into, timed):
            job.add_done_callback(countdown)

    def drop(self, piece: int) -> None:
        self._own.discard(self._offsets[piece], self._sweep.pieces[piece].nbytes)

    def release(self) -> None:
        self._ring.discard(0, self._ring.nbytes)

    def matrix(self, piece: int, offset: int | None) -> Weight:
        """Returns the piece at that place without a copy: [rows, cols] in the storage dtype with rows of padding, or
        panels."""
        held = self._sweep.pieces[piece]
        arena, at, nbytes = self._place(piece, offset)
        stored = arena.bytes(at, nbytes)
        layout, units = self._pack.layout(held.key).matrix(held.matrix), held.units
        if isinstance(layout, RowLayout):
            rows = layout.row_count(units.start, units.stop)
            dtype = DTYPES[layout.precision]
            return as_matrix(stored, rows, layout.cols, layout.row_stride, dtype)
        return PanelMatrix(
            stored,
            layout.precision.bits,
            min(units.stop * layout.rows_per_unit, layout.rows) - units.start * layout.rows_per_unit,
            layout.cols,
            layout.rows_per_unit,
            layout.unit_nbytes(0),
            layout.transposed,
        )

    def close(self) -> None:
        """Idempotent. The memory goes back when the last tensor is gone."""
        self._reader.close()
        for file in self._files.values():
            file.close()
        self._own.close()
        self._ring.close()

    def _place(self, piece: int, offset: int | None) -> tuple[Arena, int, int]:
        nbytes = self._sweep.pieces[piece].nbytes
        return (self._own, self._offsets[piece], nbytes) if offset is None else (self._ring, offset, nbytes)


def _trace(tracer: Tracer, piece: Piece, start: float, end: float, nbytes: int) -> None:
    layer = piece.key if isinstance(piece.key, int) else -1
    tracer.add(LOAD, tracer.name(piece.matrix), start, end, layer, nbytes=nbytes)


class _Countdown:
    """Calls `done` after the last of `count` jobs, with the first error of any of them."""

    def __init__(self, count: int, done: Callable[[TpiedgeError | None], None]) -> None:
        self._left = count
        self._done = done
        self._error: TpiedgeError | None = None
        self._lock = threading.Lock()

    def __call__(self, job: "Future[int]") -> None:
        error: BaseException | None
        dropped = Cancelled("a read was dropped: the weights were closed")
        error = dropped if job.cancelled() else job.exception()
        if error is not None and not isinstance(error, TpiedgeError):
            error = InternalError(f"a read failed: {type(error).__name__}: {error}")
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            if self._left:
                return
        self._done(self._error)


class EmbeddingTable:
    """Rows of the pack's embedding on disk, for one thread. A unit's checksum is checked before its first row is used.
    A quantised row is read with the 15 others of its panel; `bytes_read` counts all."""

    def __init__(self, pack: Pack) -> None:
        self.bytes_read = 0
        self._pack = pack
        self._matrix = pack.layout("embedding").matrix("embedding")
        self._checked: set[int] = set()
        self._file = OpenFile(pack.blob_path("embedding"))
        self._file.advise("RANDOM")

    def rows(self, ids: Sequence[int]) -> torch.Tensor:
        """Returns [T, H] in f32. Raises UserError for an unknown id, ReadFault, IntegrityError."""
        matrix = self._matrix
        places = [matrix.row_place(row) for row in ids]
        units = sorted({row // matrix.rows_per_unit for row in ids} - self._checked)
        ranges = [next(matrix.ranges(unit, unit + 1)) for unit in units]
        for item, good in checked_ranges(self._pack, "embedding", ranges, fast=True):
            if not good:
                raise IntegrityError(self._pack.blob_path("embedding"), item.label)
            self._checked.add(item.unit)
        found_TH = np.empty((len(ids), matrix.cols), np.float32)
        for row, (offset, length), found_H in zip(ids, places, found_TH, strict=True):
            stored = self._file.array(offset, (length,), np.dtype(np.uint8))
            self.bytes_read += length
            if isinstance(matrix, PanelLayout):
                found_H[:] = dequantise_output(stored, matrix.shape(0), row % matrix.rows_per_unit % PANEL)
                continue
            values = stored.view(numpy_dtype(STORED[matrix.precision]))
            found_H[:] = f32_from_bf16(values) if matrix.precision is Precision.BF16 else values
        return torch.from_numpy(found_TH)

    def close(self) -> None:
        self._file.close()
