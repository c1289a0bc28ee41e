"""The vectors of a blob (norms, biases): a few kilobytes a layer, in memory from the start, and which units a node
holds of a layer's matrices."""

from collections.abc import Mapping

import torch

from tpiedge.memory.arena import DTYPES, Arena, Extent
from tpiedge.memory.ranges import range_checks, read_jobs
from tpiedge.memory.reader import DirectFile, DirectReader
from tpiedge.pack.layout import share_of_matrix
from tpiedge.pack.reader import BlobKey, Pack
from tpiedge.pack.share import NodeShare, Share

__all__ = ["layer_units", "load_vectors"]


def layer_units(pack: Pack, layer: int, share: NodeShare) -> Mapping[str, Share]:
    """The units (not none) that a node of `share` holds of each matrix of a layer."""
    group = pack.group_size(layer)
    names = [matrix.name for matrix in pack.layout(layer).matrices]
    units = {name: share_of_matrix(name, share, group) for name in names}
    return {name: held for name, held in units.items() if len(held)}


def load_vectors(pack: Pack, key: BlobKey, reader: DirectReader) -> Mapping[str, torch.Tensor]:
    """Every vector of the blob, in f32. Raises ReadFault, IntegrityError, UserError, OutOfMemory."""
    layout = pack.layout(key)
    arena = Arena(layout.vectors_nbytes)
    path = pack.blob_path(key)
    with DirectFile(path) as file:
        checks = range_checks(path, layout.vector_ranges(), pack.hashes(key))
        reader.run(read_jobs(file, checks, arena.buffer(Extent(0, layout.vectors_nbytes))))
    vectors = {}
    for vector in layout.vectors:
        extent = Extent(vector.offset, vector.nbytes)
        stored = arena.matrix(extent, 1, vector.length, vector.nbytes, DTYPES[layout.precision])
        vectors[vector.name] = stored[0].to(torch.float32, copy=True)
    arena.close()
    return vectors
