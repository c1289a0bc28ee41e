"""Checks of the bytes of a matrix in a pack, and filling of the shard store."""

from pathlib import Path

import numpy as np

from tpiedge.kernels.quantise import quantise_unit
from tpiedge.pack.dtypes import bf16_from_f32, f32_from_bf16
from tpiedge.pack.layout import HashedRange, PanelLayout, RowLayout
from tpiedge.pack.manifest import manifest_bytes, pack_id
from tpiedge.pack.reader import Pack
from tpiedge.pack.shard_copy import ShardCopy
from tpiedge.pack.share import NodeShare
from tpiedge.pack.specs import MatrixSpec
from tpiedge.pack.store import ShardStore
from tpiedge.planner.needs import LayerShape

SHAPE = LayerShape(6, 3, 2, 2)
ALL = SHAPE.whole


def as_f32(array: np.ndarray) -> np.ndarray:
    return f32_from_bf16(array) if array.dtype == np.uint16 else array.astype(np.float32)


def check_matrix(pack: Pack, key: int | str, spec: MatrixSpec, values_OI: np.ndarray) -> None:
    """Every unit holds its numbers, quantised alone, then zeros; or rows in bf16."""
    blob = np.fromfile(pack.blob_path(key), np.uint8)  # type: ignore[arg-type]
    matrix = pack.layout(key).matrix(spec.name)  # type: ignore[arg-type]
    if isinstance(matrix, RowLayout):
        for row in range(matrix.rows):
            stored = blob[matrix.row_place(row)[0] :][: 2 * matrix.cols].view(np.uint16)
            np.testing.assert_array_equal(stored, bf16_from_f32(as_f32(values_OI[row])))
        return
    assert isinstance(matrix, PanelLayout)
    for unit in range(matrix.units):
        first = unit * matrix.rows_per_unit
        rows = slice(first, first + matrix.unit_rows(unit))
        part = values_OI[:, rows] if spec.transposed else values_OI[rows]
        expected, _ = quantise_unit(np.ascontiguousarray(part), matrix.shape(unit))
        offset, length = matrix.span(unit, unit + 1)
        np.testing.assert_array_equal(blob[offset : offset + len(expected)], expected)
        assert not blob[offset + len(expected) : offset + length].any()


def adopt(store: ShardStore, pack: Pack, share: NodeShare | None = ALL) -> ShardCopy:
    """An empty copy of `pack`, in use, with the tables of hashes that `share` needs."""
    manifest = manifest_bytes(pack.path)
    store.adopt_manifest(manifest, pack_id(manifest))
    copy = store.open(pack_id(manifest))
    for layer in copy.missing_tables(share) if share else []:
        copy.adopt_table(layer, table_of(pack, layer))
    return copy


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def table_of(pack: Pack, layer: int) -> bytes:
    return pack.blob_path(layer).with_suffix(".hashes").read_bytes()


def content(pack: Pack, layer: int, item: HashedRange) -> memoryview:
    data = pack.blob_path(layer).read_bytes()
    return memoryview(data)[item.offset : item.offset + item.length]


def write(copy: ShardCopy, layer: int, item: HashedRange, data: memoryview) -> bool:
    """Stores one whole range durably; False where the bytes are not those of its hash."""
    with copy.writer(layer, [item]) as writer:
        writer.write(data)
        assert writer.complete
        writer.commit(writer.pop_verified())
        return not writer.damaged
