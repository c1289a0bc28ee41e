"""Quantises matrices of a blob: one thread reads in order, others quantise, results come in order.

A piece is read at once: whole units, or some panels of a large unit. Jobs quantise it, or keep integers that the
source has in the same format.

quality.json says what quantising did to each tensor, as dB of squared weights to squared errors (null: no change). It
lies beside the manifest, is no part of the pack's identity, and does not travel.
"""

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import GROUP, PANEL, Array, PanelShape, join_panels
from tpiedge.kernels.quantise import CannotQuantise, QuantisationError, quantise_unit
from tpiedge.pack.dtypes import Codes, numpy_dtype
from tpiedge.pack.files import open_regular
from tpiedge.pack.layout import PanelLayout, whole_pages
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import JSON, MatrixSpec, Precision

# A job keeps a thread busy for milliseconds and leaves enough for the others; a piece has rows long enough to be read
# one by one.
PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class PanelRun:
    """`units` whole units from `unit` on, or `outputs` outputs of that one unit from `first_output` on. With whole
    units `outputs` is the number of a unit that is not short."""

    unit: int
    units: int
    first_output: int
    outputs: int


class TensorQuality(msgspec.Struct, frozen=True):
    """The error of the checkpoint's tensor `tensor`, a matrix called `matrix` in its blob."""

    tensor: str
    matrix: str
    precision: Precision
    signal: Annotated[float, msgspec.Meta(ge=0)]
    noise: Annotated[float, msgspec.Meta(ge=0)]

    @property
    def error(self) -> QuantisationError:
        return QuantisationError(self.signal, self.noise)


_StoredPart = tuple[Array, TensorQuality, bool]
"""Stored bytes of a tensor, what quantising did to them, and whether they are the first."""


class Quantiser:
    """A thread that reads and up to four that quantise; `quality` grows by one entry per tensor. Leaving the `with`
    block waits for them: the source must be open until then."""

    def __init__(self, search: bool) -> None:
        self.quality: list[TensorQuality] = []
        self._search = search
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="tpiedge-pack-read")
        affinity = getattr(os, "sched_getaffinity", None)
        threads = min(4, len(affinity(0)) if affinity else os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tpiedge-quantise")

    def __enter__(self) -> "Quantiser":
        return self

    def __exit__(self, *_: object) -> None:
        for threads in (self._pool, self._reader):
            threads.shutdown(wait=False, cancel_futures=True)
        for threads in (self._pool, self._reader):
            threads.shutdown()

    def parts(
        self, matrices: Iterable[tuple[MatrixSpec, PanelLayout]], source: TensorSource
    ) -> Iterator[Array]:
        """Yields the matrices' bytes in order, padded. Raises UserError for numbers that cannot be quantised."""
        jobs = (job for spec, matrix in matrices for job in _jobs(spec, matrix, source))
        for stored, quality, begins in self._results(self._ahead(jobs)):
            if begins:
                self.quality.append(quality)
            else:
                error = self.quality[-1].error + quality.error
                self.quality[-1] = msgspec.structs.replace(quality, **vars(error))
            yield stored

    def _ahead(self, jobs: Iterator["_Job"]) -> Iterator["_Job"]:
        reading = self._reader.submit(next, jobs, None)
        while (job := reading.result()) is not None:
            reading = self._reader.submit(next, jobs, None)
            yield job

    def _results(self, jobs: Iterator["_Job"]) -> Iterator[_StoredPart]:
        waiting: deque[tuple[Future[_StoredPart], int]] = deque()
        nbytes = 0
        for job in jobs:
            waiting.append((self._pool.submit(job.run, self._search), job.values.nbytes))
            nbytes += job.values.nbytes
            while nbytes > 3 * PIECE_BYTES:  # of the source
                future, size = waiting.popleft()
                yield future.result()
                nbytes -= size
        while waiting:
            yield waiting.popleft()[0].result()


def pieces(matrix: PanelLayout, itemsize: int) -> Iterator[PanelRun]:
    """Cuts a matrix with numbers of `itemsize` into pieces of at most PIECE_BYTES, one panel at least."""
    shape = matrix.shape(0)
    unit_bytes = shape.outputs * shape.inputs * itemsize
    group = PIECE_BYTES // unit_bytes
    for unit in range(0, matrix.units, max(1, group)):
        outputs = matrix.shape(unit).outputs
        if group:
            yield PanelRun(unit, min(group, matrix.units - unit), 0, outputs)
            continue
        step = max(1, PIECE_BYTES // (PANEL * shape.inputs * itemsize)) * PANEL
        for first in range(0, outputs, step):
            yield PanelRun(unit, 1, first, min(step, outputs - first))


@dataclass(frozen=True)
class _Job:
    """Some units of a matrix, or some panels of one: `values` are [outputs, inputs], in the order of storage."""

    spec: MatrixSpec
    matrix: PanelLayout
    piece: PanelRun
    values: Array | Codes

    def run(self, search: bool) -> _StoredPart:
        piece, matrix = self.piece, self.matrix
        parts, total, row = [], QuantisationError(), 0
        for unit in range(piece.unit, piece.unit + piece.units):
            shape, nbytes = _stored(matrix, piece, unit)
            rows = slice(row, row + (shape.inputs if matrix.transposed else shape.outputs))
            values_OI = self.values[:, rows] if matrix.transposed else self.values[rows]
            parts.append(np.zeros(nbytes, np.uint8))
            total += self._quantise(values_OI, shape, search, parts[-1][: shape.nbytes], row)
            row = rows.stop
        quality = TensorQuality(self.spec.source, self.spec.name, matrix.precision, **vars(total))
        return np.concatenate(parts), quality, piece.unit == 0 and piece.first_output == 0

    def _quantise(
        self, values_OI: Array | Codes, shape: PanelShape, search: bool, into: Array, row: int
    ) -> QuantisationError:
        if isinstance(values_OI, Codes):
            into[:] = panels_of(values_OI, shape)
            return QuantisationError(signal=values_OI.squares())
        try:
            return quantise_unit(values_OI, shape, search, into)[1]
        except CannotQuantise as error:
            first = self.piece.first_output
            if not self.matrix.transposed:
                first += self.piece.unit * self.matrix.rows_per_unit + row
            raise UserError(
                f"tensor {self.spec.source}, row {first + error.output} {error.reason}: it cannot be quantised; "
                "pack with --precision bf16 or f32, or repair the checkpoint"
            ) from None


def _jobs(spec: MatrixSpec, matrix: PanelLayout, source: TensorSource) -> Iterator[_Job]:
    itemsize = numpy_dtype(source.dtype(spec.source)).itemsize
    for piece in pieces(matrix, itemsize):
        values = _read(spec, matrix, piece, source)
        step = max(1, PIECE_BYTES // 4 * piece.units // values.nbytes)
        for done in range(0, piece.units, step):
            part = replace(piece, unit=piece.unit + done, units=min(step, piece.units - done))
            rows = slice(done * matrix.rows_per_unit, (done + part.units) * matrix.rows_per_unit)
            yield _Job(spec, matrix, part, values[:, rows] if spec.transposed else values[rows])


def _read(spec: MatrixSpec, matrix: PanelLayout, piece: PanelRun, source: TensorSource) -> Array | Codes:
    """The numbers of a piece, [outputs, inputs]; integers where the source has the pack's own."""
    first = piece.unit * matrix.rows_per_unit
    stored = range(first, min(first + piece.units * matrix.rows_per_unit, matrix.rows))
    outputs = range(piece.first_output, piece.first_output + piece.outputs)
    if spec.transposed:
        rows, cols = outputs, stored
    elif piece.units == 1:
        rows, cols = range(first + outputs.start, first + outputs.stop), range(matrix.cols)
    else:
        rows, cols = stored, range(matrix.cols)
    # Groups begin with units here, but perhaps not there.
    if not (spec.transposed and piece.units > 1 and matrix.rows_per_unit % GROUP):
        codes = source.read_codes(spec.source, rows, cols, matrix.precision.bits)
        if codes is not None:
            return codes
    return source.read(spec.source, rows, cols)


def _stored(matrix: PanelLayout, piece: PanelRun, unit: int) -> tuple[PanelShape, int]:
    """The piece's part of a unit, and its bytes with the padding to whole pages if the unit ends here."""
    whole = matrix.shape(unit)
    outputs = min(piece.outputs, whole.outputs - piece.first_output)
    shape = PanelShape(whole.bits, outputs, whole.inputs)
    if piece.first_output + outputs < whole.outputs:
        return shape, shape.nbytes
    before = piece.first_output // PANEL * whole.panel_nbytes
    return shape, whole_pages(before + shape.nbytes) - before


def panels_of(codes: Codes, shape: PanelShape) -> Array:
    """The bytes of the unit that holds `codes` (kernels/panels.py): uint8 [shape.nbytes]."""
    if codes.codes_OI.shape != (shape.outputs, shape.inputs) or codes.bits != shape.bits:
        raise ValueError(f"codes of {codes.codes_OI.shape} and {codes.bits} bits are not a unit of {shape}")
    scales = np.zeros((shape.panels * PANEL, shape.groups), np.dtype("<f2"))
    scales[: shape.outputs] = codes.scales_OG
    padded = np.zeros((shape.panels * PANEL, shape.padded_inputs), np.uint8)
    padded[: shape.outputs, : shape.inputs] = codes.codes_OI
    wide = {8: 4, 4: 8}[shape.bits]  # inputs of a block
    blocks: Array = padded.reshape(shape.panels, PANEL, shape.padded_inputs // wide, wide).swapaxes(1, 2)
    if shape.bits == 4:
        blocks = blocks[..., :4] | (blocks[..., 4:] << 4)
    blocks = np.ascontiguousarray(blocks).reshape(shape.panels, -1)
    unit = np.empty((shape.panels, shape.panel_nbytes), np.uint8)
    join_panels(scales.reshape(shape.panels, PANEL, shape.groups).swapaxes(1, 2), blocks, shape, unit)
    return unit.reshape(-1)


QUALITY_NAME = "quality.json"
_MAX_BYTES = 16 << 20


class Quality(msgspec.Struct, frozen=True):
    """The errors of all quantised tensors, in the order of the pack."""

    tensors: tuple[TensorQuality, ...]

    @property
    def total(self) -> QuantisationError:
        return sum((tensor.error for tensor in self.tensors), QuantisationError())

    def to_json(self) -> dict[str, JSON]:
        return {
            "sqnr_db": _finite(self.total),
            "tensors": [
                {
                    "tensor": tensor.tensor,
                    "matrix": tensor.matrix,
                    "precision": tensor.precision.value,
                    "sqnr_db": _finite(tensor.error),
                    "signal": tensor.signal,
                    "noise": tensor.noise,
                }
                for tensor in self.tensors
            ],
        }


def load_quality(pack: Path) -> Quality | None:
    """The quality of the pack in folder `pack`; None if the file is missing or damaged."""
    try:
        with open(open_regular(pack / QUALITY_NAME), "rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=Quality)
    except (OSError, ValueError, RecursionError):
        return None


def _finite(error: QuantisationError) -> float | None:
    return round(error.sqnr_db, 3) if math.isfinite(error.sqnr_db) else None
