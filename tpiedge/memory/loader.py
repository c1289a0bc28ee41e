"""Fill an arena with a share of a blob and give it out as tensors."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import torch

from tpiedge.memory.arena import DTYPES, Arena, Extent
from tpiedge.memory.ranges import read_jobs
from tpiedge.memory.reader import DirectFile, DirectReader
from tpiedge.pack.layout import BlobLayout, Range, share_of_matrix
from tpiedge.pack.reader import BlobKey, Pack
from tpiedge.pack.share import NodeShare, Share

__all__ = ["BlobShare", "BlobTensors", "layer_share", "load_blob", "rank0_shares"]


@dataclass(frozen=True)
class BlobShare:
    """The vector section of a blob and some units (not none) of some of its matrices."""

    key: BlobKey
    units: Mapping[str, Share]

    def nbytes(self, layout: BlobLayout) -> int:
        """Bytes in the arena."""
        spans = (layout.matrix(name).span(units.start, units.stop) for name, units in self.units.items())
        return layout.vectors_nbytes + sum(length for _, length in spans)


@dataclass(frozen=True)
class BlobTensors:
    """A loaded share: matrices as in the arena, vectors in f32."""

    matrices: Mapping[str, torch.Tensor]
    vectors: Mapping[str, torch.Tensor]


def layer_share(pack: Pack, layer: int, share: NodeShare) -> BlobShare:
    """What a node of `share` holds of a layer."""
    group = pack.group_size(layer)
    names = [matrix.name for matrix in pack.layout(layer).matrices]
    units = {name: share_of_matrix(name, share, group) for name in names}
    return BlobShare(layer, {name: held for name, held in units.items() if len(held)})


def rank0_shares(pack: Pack) -> list[BlobShare]:
    """What rank 0 holds besides: the final norm, and the LM head wherever its matrix is stored."""
    head_key, head_name = pack.head_matrix
    matrix = BlobShare(head_key, {head_name: Share(0, pack.layout(head_key).matrix(head_name).units)})
    return [matrix] if head_key == "head" else [BlobShare("head", {}), matrix]


def load_blob(
    pack: Pack, held: BlobShare, arena: Arena, reader: DirectReader, on_bytes: Callable[[int], None]
) -> BlobTensors:
    """Read and check the share into fresh extents of `arena`. Raises ReadFault, IntegrityError, UserError."""
    layout = pack.layout(held.key)
    section = arena.take(layout.vectors_nbytes)
    extents = {
        name: arena.take(layout.matrix(name).span(units.start, units.stop)[1])
        for name, units in held.units.items()
    }
    hashes = pack.hashes(held.key)
    with DirectFile(pack.blob_path(held.key)) as file:
        jobs = chain.from_iterable(
            read_jobs(file, ranges, hashes, arena.buffer(extent))
            for ranges, extent in _targets(layout, held, section, extents)
        )
        reader.run(jobs, on_bytes)
    matrices = {name: _matrix(layout, held, name, arena, extent) for name, extent in extents.items()}
    return BlobTensors(matrices, _vectors(layout, arena, section))


def _targets(
    layout: BlobLayout, held: BlobShare, section: Extent, extents: Mapping[str, Extent]
) -> Iterator[tuple[list[Range], Extent]]:
    yield list(layout.vector_ranges()), section
    for name, units in held.units.items():
        yield list(layout.matrix(name).ranges(units.start, units.stop)), extents[name]


def _matrix(layout: BlobLayout, held: BlobShare, name: str, arena: Arena, extent: Extent) -> torch.Tensor:
    matrix, units = layout.matrix(name), held.units[name]
    rows = matrix.row_count(units.start, units.stop)
    return arena.matrix(extent, rows, matrix.cols, matrix.row_stride, DTYPES[layout.precision])


def _vectors(layout: BlobLayout, arena: Arena, section: Extent) -> dict[str, torch.Tensor]:
    dtype = DTYPES[layout.precision]
    vectors = {}
    for vector in layout.vectors:
        extent = Extent(section.offset + vector.offset, vector.nbytes)
        stored = arena.matrix(extent, 1, vector.length, vector.nbytes, dtype)
        vectors[vector.name] = stored[0].to(torch.float32)
    return vectors
