"""The weights a node computes with, block by block.

`Weights` is what the forward pass sees: a block is resident inside a `with`, whatever had to happen for that.
`PinnedWeights` holds everything of its share in memory from the start.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch

from tpiedge.errors import InternalError, UserError
from tpiedge.memory.arena import Arena
from tpiedge.memory.embedding import EmbeddingTable
from tpiedge.memory.loader import BlobShare, BlobTensors, layer_share, load_blob, rank0_shares
from tpiedge.memory.reader import DirectReader
from tpiedge.pack.layout import ATTENTION_MATRICES, FFN_MATRICES
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare

__all__ = ["Block", "BlockKind", "BlockWeights", "PinnedWeights", "Weights"]

BlockKind: TypeAlias = Literal["attention", "ffn"]

_HEAD_TILE_ROWS = 4096
_MATRICES: dict[BlockKind, tuple[str, ...]] = {"attention": ATTENTION_MATRICES, "ffn": FFN_MATRICES}


@dataclass(frozen=True)
class Block:
    """What is loaded, computed and reduced as one."""

    layer: int
    kind: BlockKind


@dataclass(frozen=True)
class BlockWeights:
    """The node's own share of a block.

    `matrices`: [rows, cols] in the storage dtype, rows of padding (zeros) included, row stride >= cols; a
    matrix of which the node has no unit is absent. `vectors`: all of the layer's, whole, in f32.
    """

    matrices: Mapping[str, torch.Tensor]
    vectors: Mapping[str, torch.Tensor]


class Weights(Protocol):
    """What the forward pass needs. Tensors are valid inside the `with` only, and not to be changed."""

    def resident(self, block: Block) -> AbstractContextManager[BlockWeights]: ...

    def embedding_rows(self, ids: Sequence[int]) -> torch.Tensor:
        """[T, H] in f32. Rank 0 only."""
        ...

    def head_tiles(self) -> Iterator[tuple[int, torch.Tensor]]:
        """(first vocabulary row, [rows, H] in the storage dtype), no padding, in order. Rank 0 only."""
        ...

    def head_vectors(self) -> Mapping[str, torch.Tensor]:
        """The vector "final_norm" in f32. Rank 0 only."""
        ...


class PinnedWeights:
    """Everything of a share in one arena, read and checked when made; rank 0 also has the LM head.

    Raises OutOfMemory, ReadFault, IntegrityError, UserError. Layers that a synthetic model repeats are loaded
    once each, as a real model's would be, unless `share_repeated`. `progress` is called with (bytes loaded,
    bytes in all). `close` ends threads and files; the memory goes back when the last tensor is gone.
    """

    def __init__(
        self,
        pack: Pack,
        share: NodeShare,
        rank0: bool,
        *,
        share_repeated: bool = False,
        read_threads: int = 4,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        _check_share(pack, share)
        self._pack = pack
        self._rank0 = rank0
        self._blocks: dict[Block, BlockWeights] = {}
        self._blobs: dict[int | str, BlobTensors] = {}
        self._embedding: EmbeddingTable | None = None
        held = _held(pack, share, rank0, share_repeated)
        total = sum(blob.nbytes(pack.layout(blob.key)) for blob in held)
        self._arena = Arena(total)
        self._reader = DirectReader(read_threads)
        try:
            self._load(held, _Counter(total, progress))
        except BaseException:
            self.close()
            raise

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights in memory."""
        return self._arena.used

    @property
    def bytes_read(self) -> int:
        """Bytes read from disk so far, embedding rows apart."""
        return self._reader.bytes_read

    @property
    def embedding_bytes_read(self) -> int:
        """Bytes of embedding rows read from disk so far."""
        return self._embedding.bytes_read if self._embedding else 0

    def resident(self, block: Block) -> AbstractContextManager[BlockWeights]:
        if block not in self._blocks:
            raise InternalError(f"no weights for {block}: closed, or not a block of this model")
        return nullcontext(self._blocks[block])

    def embedding_rows(self, ids: Sequence[int]) -> torch.Tensor:
        if self._embedding is None:
            raise InternalError("embedding rows were asked of a node that is not rank 0, or closed")
        return self._embedding.rows(ids)

    def head_tiles(self) -> Iterator[tuple[int, torch.Tensor]]:
        key, name = self._pack.head_matrix
        stored = self._rank0_blob(key).matrices[name]
        matrix = self._pack.layout(key).matrix(name)
        # Units without padding between them can be computed in one product.
        joined = max(1, _HEAD_TILE_ROWS // matrix.rows_per_unit)
        step = joined if matrix.padded_rows == matrix.rows_per_unit else 1
        for unit in range(0, matrix.units, step):
            first, at = unit * matrix.rows_per_unit, unit * matrix.padded_rows
            yield first, stored[at : at + min(step * matrix.rows_per_unit, matrix.rows - first)]

    def head_vectors(self) -> Mapping[str, torch.Tensor]:
        return self._rank0_blob("head").vectors

    def close(self) -> None:
        self._blocks.clear()
        self._blobs.clear()
        self._reader.close()
        if self._embedding:
            self._embedding.close()
            self._embedding = None
        self._arena.close()

    def _load(self, held: list[BlobShare], counter: "_Counter") -> None:
        by_id: dict[str, BlobTensors] = {}
        for blob in held:
            tensors = load_blob(self._pack, blob, self._arena, self._reader, counter)
            self._blobs[blob.key] = tensors
            by_id[self._pack.blob_id(blob.key)] = tensors
        for layer in range(self._pack.num_layers):
            stored = self._blobs.get(layer) or by_id[self._pack.blob_id(layer)]
            for kind, names in _MATRICES.items():
                matrices = {name: stored.matrices[name] for name in names if name in stored.matrices}
                self._blocks[Block(layer, kind)] = BlockWeights(matrices, stored.vectors)
        if self._rank0:
            self._embedding = EmbeddingTable(self._pack, self._reader)

    def _rank0_blob(self, key: int | str) -> BlobTensors:
        if not self._rank0 or key not in self._blobs:
            raise InternalError("the LM head was asked of a node that is not rank 0, or closed")
        return self._blobs[key]


class _Counter:
    """Turns the size of each read into (bytes loaded, bytes in all)."""

    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        self._total = total
        self._progress = progress
        self._done = 0

    def __call__(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress:
            self._progress(self._done, self._total)


def _held(pack: Pack, share: NodeShare, rank0: bool, share_repeated: bool) -> list[BlobShare]:
    """What to load, each entry once."""
    layers = list(range(pack.num_layers))
    if share_repeated:
        layers = [key for key in pack.unique_keys if isinstance(key, int)]
    held = [layer_share(pack, layer, share) for layer in layers]
    return held + (rank0_shares(pack) if rank0 else [])


def _check_share(pack: Pack, share: NodeShare) -> None:
    """Raises UserError for a share beyond the model."""
    layout = pack.layout(0)
    for name, held in (("q", share.attention), ("gate", share.ffn), ("up", share.ffn)):
        if layout.has_matrix(name) and held.stop > layout.matrix(name).units:
            units = layout.matrix(name).units
            raise UserError(
                f"a share ends at unit {held.stop} of {name}, but the model has {units}: plan again"
            )
