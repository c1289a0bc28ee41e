"""Quantises the matrices of a blob. One thread reads pieces of whole units in order. Other threads quantise the pieces,
or keep the source's own integers.

quality.json beside the manifest has each tensor's signal-to-noise ratio in dB; null means no error. The pack's id does
not cover this file.
"""

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import GROUP, Array, Codes
from tpiedge.kernels.quantise import CannotQuantise, QuantisationError, quantise_unit
from tpiedge.pack.dtypes import NUMPY
from tpiedge.pack.files import Closable, open_regular
from tpiedge.pack.layout import PanelLayout
from tpiedge.pack.quantised import cut_at_blocks
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import CHOICES, JSON, Precision

# A job, a quarter of a piece, keeps a thread busy for milliseconds and leaves enough for the others; a piece has rows
# long enough to be read one by one.
PIECE_BYTES = 16 << 20


class TensorQuality(msgspec.Struct, frozen=True):
    """The error of the checkpoint's `tensor`, which its blob calls `matrix`. `signal` and `noise` are sums of
    squares."""

    tensor: str
    matrix: str
    precision: Precision
    signal: Annotated[float, msgspec.Meta(ge=0)]
    noise: Annotated[float, msgspec.Meta(ge=0)]

    @property
    def error(self) -> QuantisationError:
        return QuantisationError(self.signal, self.noise)


_StoredPart = tuple[Array, TensorQuality, bool]
"""Stored bytes of a tensor, their error, and whether they are the tensor's first."""


class Quantiser(Closable):
    """Quantises in up to four threads, while another reads. `close` waits for all. `quality` has an entry per
    tensor."""

    def __init__(self, search: bool) -> None:
        self.quality: list[TensorQuality] = []
        self._search = search
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="tpiedge-pack-read")
        affinity = getattr(os, "sched_getaffinity", None)
        threads = min(4, len(affinity(0)) if affinity else os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tpiedge-quantise")

    def close(self) -> None:
        for threads in (self._reader, self._pool):
            threads.shutdown(cancel_futures=True)

    def parts(self, matrices: Iterable[PanelLayout], source: TensorSource) -> Iterator[Array]:
        """Yields the matrices' stored bytes in order, with padding. Raises UserError."""
        jobs = (job for matrix in matrices for job in _jobs(matrix, source))
        waiting: deque[tuple[Future[_StoredPart], int]] = deque()
        reading = self._reader.submit(next, jobs, None)
        while (job := reading.result()) is not None:
            reading = self._reader.submit(next, jobs, None)
            waiting.append((self._pool.submit(job.run, self._search), job.values.nbytes))
            while sum(nbytes for _, nbytes in waiting) > 3 * PIECE_BYTES:
                yield self._counted(waiting.popleft()[0])
        while waiting:
            yield self._counted(waiting.popleft()[0])

    def _counted(self, part: "Future[_StoredPart]") -> Array:
        stored, quality, begins = part.result()
        if not begins:
            error = self.quality.pop().error + quality.error
            quality = msgspec.structs.replace(quality, **vars(error))
        self.quality.append(quality)
        return stored


@dataclass(frozen=True)
class _Job:
    """Units of a matrix and their values, [outputs, inputs]."""

    matrix: PanelLayout
    units: range
    values: Array | Codes

    def run(self, search: bool) -> _StoredPart:
        matrix, total = self.matrix, QuantisationError()
        stored = np.zeros(matrix.span(self.units.start, self.units.stop)[1], np.uint8)
        for number, unit in enumerate(self.units):
            first, shape = number * matrix.rows_per_unit, matrix.shape(unit)
            rows = slice(first, first + matrix.unit_rows(unit))
            values_OI = self.values[:, rows] if matrix.transposed else self.values[rows]
            into = stored[number * matrix.unit_nbytes(0) :][: shape.nbytes]
            if isinstance(values_OI, Codes):
                into[:] = values_OI.panels(shape)
                with np.errstate(over="ignore"):
                    total += QuantisationError(signal=min(values_OI.squares(), 1e300))
                continue
            try:
                total += quantise_unit(values_OI, shape, search, into)[1]
            except CannotQuantise as error:
                row = error.output + (0 if matrix.transposed else unit * matrix.rows_per_unit)
                raise UserError(
                    f"tensor {matrix.source}, row {row} {error.reason}: it cannot be quantised; pack with --precision "
                    "bf16 or f32, or repair the checkpoint"
                ) from None
        quality = TensorQuality(matrix.source, matrix.name, matrix.precision, **vars(total))
        return stored, quality, self.units.start == 0


def _jobs(matrix: PanelLayout, source: TensorSource) -> Iterator[_Job]:
    shape = matrix.shape(0)
    unit_bytes = shape.outputs * shape.inputs * NUMPY[source.dtype(matrix.source)].itemsize
    per_piece, per_job = (max(1, nbytes // unit_bytes) for nbytes in (PIECE_BYTES, PIECE_BYTES // 4))
    for first in range(0, matrix.units, per_piece):
        piece = range(first, min(first + per_piece, matrix.units))
        values = _read(matrix, piece, source)
        for done in range(0, len(piece), per_job):
            units = piece[done : done + per_job]
            rows = slice(done * matrix.rows_per_unit, (done + len(units)) * matrix.rows_per_unit)
            yield _Job(matrix, units, values[:, rows] if matrix.transposed else values[rows])


def _read(matrix: PanelLayout, units: range, source: TensorSource) -> Array | Codes:
    """Reads `units` as [outputs, inputs]: the source's codes if possible, else numbers. Raises UserError."""
    rows, cols = matrix.rows_of(units), range(matrix.cols)
    if matrix.transposed:
        rows, cols = cols, rows
    # Groups begin with units in the pack, but perhaps not in the source.
    if not matrix.transposed or len(units) == 1 or matrix.rows_per_unit % GROUP == 0:
        codes = source.read_codes(matrix.source, rows, cols, matrix.precision.format)
        if codes is not None:
            return codes
    if matrix.precision not in CHOICES:
        cause = "the units cut the tensor's blocks; pack with --precision q8"
        if cut_at_blocks(matrix, GROUP):
            cause = "a scale is NaN or infinite; repair the file or download it again"
        raise UserError(
            f"tensor {matrix.source}, units {units.start} to {units.stop - 1} of {matrix.units} cannot be kept as "
            f"{matrix.precision.value}: {cause}"
        )
    return source.read(matrix.source, rows, cols)


QUALITY_NAME = "quality.json"
_MAX_BYTES = 16 << 20


class Quality(msgspec.Struct, frozen=True):
    tensors: tuple[TensorQuality, ...]

    @property
    def total(self) -> QuantisationError:
        return sum((tensor.error for tensor in self.tensors), QuantisationError())

    def to_json(self) -> dict[str, JSON]:
        return {
            "sqnr_db": _finite(self.total),
            "tensors": [
                msgspec.to_builtins(tensor) | {"sqnr_db": _finite(tensor.error)} for tensor in self.tensors
            ],
        }


def load_quality(pack: Path) -> Quality | None:
    """Reads the pack's quality.json. Returns None if the file is missing or damaged."""
    try:
        with open(open_regular(pack / QUALITY_NAME), "rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=Quality)
    except (OSError, ValueError, RecursionError):
        return None


def _finite(error: QuantisationError) -> float | None:
    return round(error.sqnr_db, 3) if math.isfinite(error.sqnr_db) else None
