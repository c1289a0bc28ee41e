"""Reads pieces of weights, and rows of the embedding, from a pack's files."""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch

from tpiedge.errors import IntegrityError
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight
from tpiedge.kernels.panels import PANEL, dequantise_output
from tpiedge.memory.arena import DTYPES, Arena, as_matrix
from tpiedge.memory.reader import DirectFile, DirectReader, grouped
from tpiedge.memory.residency import Read
from tpiedge.memory.sweep import Piece, Sweep
from tpiedge.pack.dtypes import NUMPY, STORED, f32_from_bf16
from tpiedge.pack.files import OpenFile
from tpiedge.pack.hashes import HashTable
from tpiedge.pack.layout import ExpertsLayout, HashedRange, MatrixLayout, PanelLayout, RowLayout
from tpiedge.pack.reader import Pack, checked_ranges
from tpiedge.pack.share import Share
from tpiedge.pack.specs import Precision
from tpiedge.tracing.tracer import LOAD, Tracer


class PieceLoader:
    """Reads streamed pieces into the ring, and pinned pieces into their own places in another arena. Raises
    OutOfMemory, UserError, IntegrityError."""

    def __init__(
        self, pack: Pack, sweep: Sweep, ring_bytes: int, reader: DirectReader, *, direct: bool = True
    ) -> None:
        self._pack = pack
        self._sweep = sweep
        self._reader = reader
        self._offsets = (0, *accumulate(piece.nbytes for piece in sweep.pieces))
        self._own = Arena(self._offsets[-1], filled=not ring_bytes)
        self._ring = Arena(ring_bytes, filled=True)
        self._files: dict[str, tuple[DirectFile, HashTable]] = {}
        self._groups: dict[int, Sequence[Sequence[HashedRange]]] = {}  # ranges of a piece, to be read at once
        self._tracer: Tracer | None = None
        try:
            for key in {piece.key: None for piece in sweep.pieces}:
                if pack.blob_id(key) not in self._files:
                    hashes = pack.hashes(key)
                    self._files[pack.blob_id(key)] = DirectFile(pack.blob_path(key), direct=direct), hashes
        except BaseException:
            self.close()
            raise

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, also by other users of the DirectReader."""
        return self._reader.bytes_read

    def trace(self, tracer: Tracer) -> None:
        for piece in self._sweep.pieces:
            tracer.name(piece.matrix)
        self._tracer = tracer

    def read(self, order: Read, done: Callable[[Exception | None], None]) -> None:
        """Starts reading a piece. At the end, a thread calls `done` with an error or None."""
        piece = self._sweep.pieces[order.piece]
        if order.piece not in self._groups:  # worked out once: a piece is read again in every sweep
            part = self._pack.layout(piece.key).part(piece.matrix)
            self._groups[order.piece] = tuple(grouped(part.ranges(piece.units.start, piece.units.stop)))
        (file, hashes), groups = self._files[self._pack.blob_id(piece.key)], self._groups[order.piece]
        arena, offset = self._place(order.piece, order.offset)
        timed = None if self._tracer is None else functools.partial(_trace, self._tracer, piece)
        finished = _last_of(len(groups), done)
        for job in self._reader.read_ranges(file, groups, hashes, arena.buffer(offset, piece.nbytes), timed):
            job.add_done_callback(finished)

    def drop(self, piece: int | None) -> None:
        """Gives back the memory of a piece, or of the ring if `piece` is None."""
        if piece is None:
            self._ring.discard(0, self._ring.nbytes)
        else:
            self._own.discard(self._offsets[piece], self._sweep.pieces[piece].nbytes)

    def stored(self, piece: int, offset: int | None, pieces: int = 1) -> "Weight | StoredExperts":
        """Returns a view of a piece at `offset` of the ring (None: in the piece's own place), and of the pieces that
        follow it there in the same matrix."""
        held, last = self._sweep.pieces[piece], self._sweep.pieces[piece + pieces - 1]
        arena, at = self._place(piece, offset)
        nbytes = self._offsets[piece + pieces] - self._offsets[piece]
        stored, part = arena.bytes(at, nbytes), self._pack.layout(held.key).part(held.matrix)
        units = Share(held.units.start, last.units.stop)
        if isinstance(part, ExpertsLayout):
            return StoredExperts(stored, part, units)
        return stored_matrix(stored, part, units)

    def close(self) -> None:
        """Ends the reads. Idempotent. Tensors keep the memory alive."""
        self._reader.close()
        for file, _ in self._files.values():
            file.close()
        self._own.close()
        self._ring.close()

    def _place(self, piece: int, offset: int | None) -> tuple[Arena, int]:
        return (self._own, self._offsets[piece]) if offset is None else (self._ring, offset)


def stored_matrix(stored: torch.Tensor, layout: MatrixLayout, units: Share) -> Weight:
    """Returns a view of the stored bytes of some units of a matrix."""
    if isinstance(layout, RowLayout):
        rows = len(stored) // layout.row_stride
        return as_matrix(stored, rows, layout.cols, layout.row_stride, DTYPES[layout.precision])
    return PanelMatrix(
        stored,
        layout.precision.format,
        len(layout.rows_of(units)),
        layout.cols,
        layout.rows_per_unit,
        layout.unit_nbytes(0),
        layout.transposed,
    )


@dataclass(frozen=True)
class StoredExperts:
    """A node's units of every expert of a layer."""

    stored: torch.Tensor
    layout: ExpertsLayout
    units: Share

    @cached_property
    def nbytes(self) -> int:
        """Bytes from one expert to the next."""
        return self.layout.expert_nbytes(self.units)

    def of(self, expert: int) -> tuple[Weight, Weight, Weight]:
        """Returns views of an expert's gate, up and down. If quantised, they end with the last expert's bytes."""
        own = self.stored[expert * self.nbytes :]
        gate, up, down = (
            stored_matrix(own[place], matrix, self.units)
            for matrix, place in zip(self.layout.matrices, self._places, strict=True)
        )
        return gate, up, down

    @cached_property
    def _places(self) -> Sequence[slice]:
        return self.layout.places(self.units)


def _trace(tracer: Tracer, piece: Piece, start: float, end: float, nbytes: int) -> None:
    layer = piece.key if isinstance(piece.key, int) else -1
    tracer.add(LOAD, tracer.name(piece.matrix), start, end, layer, nbytes=nbytes)


def _last_of(count: int, done: Callable[[Exception | None], None]) -> "Callable[[Future[int]], None]":
    """Returns a callback for each of `count` jobs. The last job calls `done`."""
    left, errors = iter(range(count - 1, -1, -1)), list[Exception]()

    def finished(job: "Future[int]") -> None:
        try:
            job.result()
        except Exception as error:
            errors.append(error)
        if next(left) == 0:  # atomic: any thread may call
            done(errors[0] if errors else None)

    return finished


class EmbeddingTable:
    """Reads rows of a matrix of the embedding's blob from disk. Not thread-safe. Checks each unit at its first use. For
    quantised rows, `bytes_read` counts whole panels."""

    def __init__(self, pack: Pack, name: str = "embedding") -> None:
        self.bytes_read = 0
        self._pack = pack
        self._matrix = pack.layout("embedding").matrix(name)
        self._checked: set[int] = set()
        self._file = OpenFile(pack.blob_path("embedding"))
        self._file.advise("RANDOM")

    def rows(self, ids: Sequence[int]) -> torch.Tensor:
        """Returns the rows of `ids` as f32 [T, H]. Raises UserError, ReadFault, IntegrityError."""
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
            values = stored.view(NUMPY[STORED[matrix.precision]])
            found_H[:] = f32_from_bf16(values) if matrix.precision is Precision.BF16 else values
        return torch.from_numpy(found_TH)

    def close(self) -> None:
        self._file.close()
