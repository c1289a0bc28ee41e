"""The vectors of a blob (norms, biases): a few kilobytes a layer, in memory from the start."""

from collections.abc import Mapping

import torch

from tpiedge.memory.arena import DTYPES, Arena, Extent
from tpiedge.memory.ranges import range_checks, read_jobs
from tpiedge.memory.reader import DirectFile, DirectReader
from tpiedge.pack.reader import BlobKey, Pack

__all__ = ["load_vectors"]


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
        stored = arena.matrix(extent, 1, vector.length, vector.nbytes, DTYPES[vector.precision])
        vectors[vector.name] = stored[0].to(torch.float32, copy=True)
    arena.close()
    return vectors
