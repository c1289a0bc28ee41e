"""Quantises the matrices of a blob. One thread reads pieces of whole units in order. Other threads quantise the pieces,
or keep the source's own integers.

quality.json beside the manifest has each tensor's signal-to-noise ratio in dB; null means no error. The pack's id does
not cover this file.
"""

import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
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
from tpiedge.pack.layout import BlobLayout, MatrixLayout, PanelLayout
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


_Stored = tuple[Array, Sequence[TensorQuality]]
"""Stored bytes, and their errors by tensor."""


class Quantiser(Closable):
    """Quantises in up to four threads, while another reads. `close` waits for all. `quality` has an entry per tensor;
    the tensors of all experts are one."""

    def __init__(self, search: bool) -> None:
        self.quality: dict[str, TensorQuality] = {}
        self._search = search
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="tpiedge-pack-read")
        affinity = getattr(os, "sched_getaffinity", None)
        threads = min(4, len(affinity(0)) if affinity else os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tpiedge-quantise")

    def close(self) -> None:
        for threads in (self._reader, self._pool):
            threads.shutdown(cancel_futures=True)

    def parts(self, layout: BlobLayout, source: TensorSource) -> Iterator[Array]:
        """Yields the stored bytes of the quantised matrices in order, with padding. Raises UserError."""
        jobs = (job for run in _runs(layout) for job in _jobs(*run, source))
        waiting: deque[tuple[Future[_Stored], int]] = deque()
        reading = self._reader.submit(next, jobs, None)
        while (job := reading.result()) is not None:
            reading = self._reader.submit(next, jobs, None)
            nbytes = sum(values.nbytes for values in job.values)
            waiting.append((self._pool.submit(job.run, self._search), nbytes))
            while sum(nbytes for _, nbytes in waiting) > 3 * PIECE_BYTES:
                yield self._counted(waiting.popleft()[0])
        while waiting:
            yield self._counted(waiting.popleft()[0])

    def _counted(self, part: "Future[_Stored]") -> Array:
        stored, found = part.result()
        for quality in found:
            before = self.quality.get(quality.tensor)
            error = quality.error + (before.error if before else QuantisationError())
            self.quality[quality.tensor] = msgspec.structs.replace(quality, **vars(error))
        return stored


@dataclass(frozen=True)
class _UnitPart:
    """A matrix, the number of its expert if it has one, and where it begins in a unit."""

    matrix: PanelLayout
    expert: int = 0
    place: int = 0

    @property
    def source(self) -> str:
        return self.matrix.source.replace("{}", str(self.expert))


def _runs(layout: BlobLayout) -> Iterator[tuple[MatrixLayout, Sequence[_UnitPart]]]:
    """Yields the quantised matrices that are stored unit after unit."""
    for matrix in layout.matrices:
        if isinstance(matrix, PanelLayout):
            yield matrix, [_UnitPart(matrix)]
    if layout.experts is None:
        return
    for expert in range(layout.experts.count):
        placed = zip(layout.experts.matrices, layout.experts.places(range(1)), strict=True)
        parts = [_UnitPart(one, expert, place.start) for one, place in placed if isinstance(one, PanelLayout)]
        if parts:
            yield layout.experts.runs[0], parts


@dataclass(frozen=True)
class _Job:
    """Units of matrices and their values, [outputs, inputs]. `run_of` has the bytes of the units."""

    run_of: MatrixLayout
    parts: Sequence[_UnitPart]
    units: range
    values: Sequence[Array | Codes]

    def run(self, search: bool) -> _Stored:
        stored = np.zeros(self.run_of.span(self.units.start, self.units.stop)[1], np.uint8)
        pairs = zip(self.parts, self.values, strict=True)
        return stored, [self._fill(stored, part, values, search) for part, values in pairs]

    def _fill(self, stored: Array, part: _UnitPart, values: Array | Codes, search: bool) -> TensorQuality:
        matrix, total = part.matrix, QuantisationError()
        for number, unit in enumerate(self.units):
            first, shape = number * matrix.rows_per_unit, matrix.shape(unit)
            rows = slice(first, first + matrix.unit_rows(unit))
            values_OI = values[:, rows] if matrix.transposed else values[rows]
            into = stored[number * self.run_of.unit_nbytes(0) + part.place :][: shape.nbytes]
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
                    f"tensor {part.source}, row {row} {error.reason}: it cannot be quantised; pack with --precision "
                    "bf16 or f32, or repair the checkpoint"
                ) from None
        return TensorQuality(matrix.source, matrix.name, matrix.precision, **vars(total))


def _jobs(run: MatrixLayout, parts: Sequence[_UnitPart], source: TensorSource) -> Iterator[_Job]:
    unit_bytes = sum(
        shape.outputs * shape.inputs * NUMPY[source.dtype(part.source)].itemsize
        for part in parts
        for shape in [part.matrix.shape(0)]
    )
    per_piece, per_job = (max(1, nbytes // unit_bytes) for nbytes in (PIECE_BYTES, PIECE_BYTES // 4))
    for first in range(0, run.units, per_piece):
        piece = range(first, min(first + per_piece, run.units))
        read = [_read(part, piece, source) for part in parts]
        for done in range(0, len(piece), per_job):
            units = piece[done : done + per_job]
            rows = slice(done * run.rows_per_unit, (done + len(units)) * run.rows_per_unit)
            both = zip(parts, read, strict=True)
            values = [one[:, rows] if part.matrix.transposed else one[rows] for part, one in both]
            yield _Job(run, parts, units, values)


def _read(part: _UnitPart, units: range, source: TensorSource) -> Array | Codes:
    """Reads `units` as [outputs, inputs]: the source's codes if possible, else numbers. Raises UserError."""
    matrix = part.matrix
    rows, cols = matrix.rows_of(units), range(matrix.cols)
    if matrix.transposed:
        rows, cols = cols, rows
    # Groups begin with units in the pack, but perhaps not in the source.
    if not matrix.transposed or len(units) == 1 or matrix.rows_per_unit % GROUP == 0:
        codes = source.read_codes(part.source, rows, cols, matrix.precision.format)
        if codes is not None:
            return codes
    if matrix.precision not in CHOICES:
        cause = "the units cut the tensor's blocks; pack with --precision q8"
        if cut_at_blocks(matrix, GROUP):
            cause = "a scale is NaN or infinite; repair the file or download it again"
        raise UserError(
            f"tensor {part.source}, units {units.start} to {units.stop - 1} of {matrix.units} cannot be kept as "
            f"{matrix.precision.value}: {cause}"
        )
    return source.read(part.source, rows, cols)


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
