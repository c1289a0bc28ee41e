"""Exports a pack as a safetensors checkpoint with the original names and shapes. Quantised matrices become f32."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import PANEL, Array, PanelShape, dequantise_unit
from tpiedge.pack.dtypes import NUMPY, STORED, SourceDtype
from tpiedge.pack.files import (
    OpenFile,
    array_bytes,
    check_free_space,
    explain_write_errors,
    lock_target,
    partial_folder,
)
from tpiedge.pack.layout import MatrixLayout, PanelLayout, RowLayout, VectorLayout
from tpiedge.pack.reader import Pack, verify_pack
from tpiedge.pack.specs import JSON, BlobKey, columns_source, stack_source, whole_source
from tpiedge.pack.writer import STRIP_BYTES, transpose

INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True)
class TensorEntry:
    name: str
    dtype: SourceDtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * NUMPY[self.dtype].itemsize


def header(tensors: Sequence[TensorEntry]) -> bytes:
    """Returns a file's header: the JSON's length (8 bytes), then the JSON, padded to a multiple of 8 bytes."""
    entries: dict[str, JSON] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def split_shards(tensors: Iterable[TensorEntry], limit: int) -> dict[str, list[TensorEntry]]:
    """Returns file name -> tensors. A file has at most `limit` bytes or one tensor."""
    shards: list[list[TensorEntry]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    of = f"of-{len(shards):05d}.safetensors"
    return {f"model-{number:05d}-{of}": shard for number, shard in enumerate(shards, 1)}


def index(shards: Mapping[str, Sequence[TensorEntry]]) -> dict[str, JSON]:
    total = sum(tensor.nbytes for shard in shards.values() for tensor in shard)
    weight_map: dict[str, JSON] = {tensor.name: name for name, shard in shards.items() for tensor in shard}
    return {"metadata": {"total_size": total}, "weight_map": weight_map}


def export_safetensors(pack: Pack, out: Path, shard_bytes: int = 4_000_000_000) -> list[Path]:
    """Checks the pack, and writes its tensors into the new folder `out`. Returns the files. Errors (UserError,
    DiskFull, ReadFault, IntegrityError) leave no files."""
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already: choose a new folder")
    places = _places(pack)
    shards = split_shards((tensor for tensor, _ in places.values()), shard_bytes)
    needed = sum(tensor.nbytes for shard in shards.values() for tensor in shard) + (1 << 20)
    with explain_write_errors(out.parent, needed), lock_target(out, timeout_s=1.0):
        check_free_space(out.parent, needed)
        verify_pack(pack, fast=True)
        with partial_folder(out) as folder:
            for name, shard in shards.items():
                with (folder / name).open("wb") as file:
                    file.write(header(shard))
                    for tensor in shard:
                        for part in _tensor_parts(pack, tensor, places[tensor.name][1]):
                            file.write(array_bytes(part))
                    file.flush()
                    os.fsync(file.fileno())
            if len(shards) > 1:
                (folder / INDEX_NAME).write_text(json.dumps(index(shards), indent=2))
        return [out / name for name in shards]


_Place: TypeAlias = tuple[BlobKey, MatrixLayout | VectorLayout]


def _places(pack: Pack) -> dict[str, tuple[TensorEntry, list[_Place]]]:
    """Returns name -> (tensor, the pack's matrices or vectors that it consists of)."""
    found: dict[str, tuple[TensorEntry, list[_Place]]] = {}
    seen = set()
    for key in pack.keys:
        layout, spec = pack.layout(key), pack.spec.blobs[key]
        experts = map(layout.experts.of_expert, range(layout.experts.count)) if layout.experts else ()
        entries: list[tuple[MatrixLayout | VectorLayout, TensorEntry]] = [
            (m, TensorEntry(m.source, STORED.get(m.precision, "F32"), m.source_shape))
            for m in chain(layout.matrices, *experts)
        ]
        entries += [(v, TensorEntry(v.source, STORED[v.precision], spec.shape_of(v))) for v in layout.vectors]
        for part, entry in entries:
            if entry.name in seen:
                continue
            seen.add(entry.name)
            matrix, rows = whole_source(entry.name)
            columns, stack = columns_source(entry.name), stack_source(matrix)
            name = columns.tensor if columns else stack.tensor if stack else matrix
            (_, parts), shape = found.get(name, (entry, [])), entry.shape
            if columns is not None:
                shape = columns.shape_of_all(shape, 1 + (columns.item or 0))  # up to this expert
            elif stack is not None:
                shape = int(stack.item) + 1, rows.stop if rows else shape[0], shape[1]
            elif rows is not None:
                shape = rows.stop, *shape[1:]
            found[name] = replace(entry, name=name, shape=shape), [*parts, (key, part)]
    return found


def _tensor_parts(pack: Pack, tensor: TensorEntry, places: Sequence[_Place]) -> Iterator[Array]:
    """Yields the bytes of a tensor. Matrices and vectors that are columns of it take turns."""
    first = columns_source(places[0][1].source)
    if first is None:
        for key, place in places:
            yield from _stored_parts(pack, key, place)
        return
    dtype, rows = NUMPY[tensor.dtype], tensor.shape[-2]
    for at in range(0, len(places), first.step):
        columns = []
        for key, place in places[at : at + first.step]:
            parts = [part.view(dtype) for part in _stored_parts(pack, key, place)]
            columns.append(np.concatenate(parts).T if first.item is not None else parts[0].reshape(rows, -1))
        yield np.ascontiguousarray(np.stack(columns, -1).reshape(rows, -1))


def _stored_parts(pack: Pack, key: BlobKey, place: MatrixLayout | VectorLayout) -> Iterator[Array]:
    with OpenFile(pack.blob_path(key)) as file:
        match place:
            case VectorLayout():
                yield file.array(place.offset, (place.nbytes,), np.dtype(np.uint8))
            case RowLayout():
                yield from _matrix_parts(place, file)
            case PanelLayout():
                yield from dequantised_rows(place, file)


def _matrix_parts(matrix: RowLayout, file: OpenFile) -> Iterator[Array]:
    dtype = NUMPY[STORED[matrix.precision]]
    if matrix.transposed:
        places = [
            (matrix.row_place(row)[0] - matrix.offset) // matrix.row_stride for row in range(matrix.rows)
        ]
        step = max(1, STRIP_BYTES // (matrix.rows * matrix.itemsize))
        for first in range(0, matrix.cols, step):
            shape = places[-1] + 1, min(step, matrix.cols - first)
            strip = file.strided(matrix.offset + first * matrix.itemsize, matrix.row_stride, shape, dtype)
            yield transpose(strip[places])
        return
    for unit in range(matrix.units):
        shape = matrix.unit_rows(unit), matrix.row_stride // matrix.itemsize
        rows = file.array(matrix.span(unit, unit + 1)[0], shape, dtype)
        yield np.ascontiguousarray(rows[:, : matrix.cols])


def dequantised_rows(matrix: PanelLayout, file: OpenFile) -> Iterator[Array]:
    """Yields parts of the checkpoint's matrix as f32 [some outputs, all inputs]. Raises ReadFault."""
    if not matrix.transposed:
        for unit in range(matrix.units):
            yield _panels(matrix, unit, 0, matrix.shape(unit).panels, file)
        return
    panels = max(1, (4 << 20) // (PANEL * 4 * matrix.rows))  # about five arrays of a part live at a time
    for first in range(0, matrix.shape(0).panels, panels):
        units = [_panels(matrix, unit, first, panels, file) for unit in range(matrix.units)]
        yield np.concatenate(units, axis=1)


def _panels(matrix: PanelLayout, unit: int, first: int, count: int, file: OpenFile) -> Array:
    """Reads up to `count` panels of a unit as [outputs, inputs]."""
    whole = matrix.shape(unit)
    outputs = min(count * PANEL, whole.outputs - first * PANEL)
    shape = PanelShape(whole.format, outputs, whole.inputs)
    offset = matrix.span(unit, unit + 1)[0] + first * whole.panel_nbytes
    return dequantise_unit(file.array(offset, (shape.nbytes,), np.dtype(np.uint8)), shape)
