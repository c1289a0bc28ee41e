"""The weights a node computes with, block by block.

A block is resident inside a `with`, pinned, or streamed from disk ahead of its use.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from tpiedge.errors import InternalError
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight
from tpiedge.memory.arena import DTYPES, Arena, Extent
from tpiedge.memory.loader import EmbeddingTable, PieceLoader
from tpiedge.memory.reader import DirectFile, DirectReader, grouped, read_jobs
from tpiedge.memory.residency import Residency
from tpiedge.memory.scheduler import Counts, Scheduler
from tpiedge.memory.sweep import Block, HeadTile, Placement, SparePins, Sweep
from tpiedge.pack.reader import BlobKey, Pack
from tpiedge.pack.share import NodeShare
from tpiedge.tracing.tracer import EventSink, Tracer


@dataclass(frozen=True)
class BlockWeights:
    """The node's own share of a block.

    `matrices`: panels, or [rows, cols] in the storage dtype, rows of padding (zeros) included, row stride >= cols; a
    matrix of which the node has no unit is absent. `vectors`: all of the layer's, whole, in f32.
    """

    matrices: Mapping[str, Weight]
    vectors: Mapping[str, torch.Tensor]


class NodeWeights:
    """The share of one node; rank 0 also has the embedding and the LM head.

    Without a `placement` everything is pinned. When made, everything is read and checked that can be read ahead.
    Raises OutOfMemory, ReadFault, IntegrityError, UserError. `progress` is called with (bytes read, bytes to read
    before it is ready). `close` ends threads and files; the memory goes back when the last matrix is gone.
    """

    def __init__(
        self,
        pack: Pack,
        share: NodeShare,
        rank0: bool,
        placement: Callable[[Sweep], Placement] | None = None,
        *,
        kv_bytes: int = 0,
        direct: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """`kv_bytes`: of a full KV cache, for which `placement` leaves room. While it is not full, more is pinned."""
        self.sweep = Sweep.of(pack, share, rank0)
        everything = Placement(0, frozenset(range(len(self.sweep.pieces))))
        self.placement = everything if placement is None else placement(self.sweep)
        self._sizes = [piece.nbytes for piece in self.sweep.pieces]
        self._kv_bytes = kv_bytes
        self._spare = SparePins(self._sizes, self.placement)
        self._extra = self._spare.count(kv_bytes)
        self._pack = pack
        self._reader = DirectReader()
        self._embedding: EmbeddingTable | None = None
        self._open: tuple[PieceLoader, Scheduler] | None = None  # until the weights are closed
        self._vectors: dict[BlobKey, Mapping[str, torch.Tensor]] = {}
        self._own: dict[int, Weight] = {}
        #: Of all blocks, where they stay in memory.
        self._kept: dict[Block | HeadTile, BlockWeights] = {}
        try:
            self._read_ahead(rank0, direct, progress)
        except BaseException:
            self.close()
            raise

    @property
    def weight_bytes(self) -> int:
        """Bytes that are allotted to weights at present: vectors, pinned pieces and the ring. What is pinned again is
        resident once it has been read, and what is unpinned until no read writes to it."""
        return self._vector_bytes + self._spare.placement(self._extra).nbytes(self._sizes)

    @property
    def window_bytes(self) -> int:
        """Those of them that streamed weights pass through at present: the ring."""
        return self._spare.placement(self._extra).ring_bytes

    @property
    def streams(self) -> bool:
        """Whether there is a ring that weights pass through."""
        return self.placement.ring_bytes > 0

    @property
    def bytes_read(self) -> int:
        """Bytes read from disk so far, embedding rows apart."""
        return self._reader.bytes_read

    @property
    def embedding_bytes_read(self) -> int:
        """Bytes of embedding rows read from disk so far."""
        return self._embedding.bytes_read if self._embedding else 0

    @property
    def streamed_bytes(self) -> int:
        """Bytes of weights read from disk since everything was there that can be read ahead."""
        return self._reader.bytes_read - self._bytes_ahead

    @property
    def counts(self) -> Counts:
        """How often a block was waited for."""
        return self._open[1].counts if self._open else Counts()

    def kept(self) -> Mapping[Block | HeadTile, BlockWeights] | None:
        """All blocks, the same object every time, where they stay in memory until the weights are closed."""
        return self._kept or None

    def make_room(self, kv_bytes: int) -> None:
        """The KV cache takes `kv_bytes` during the sweep that begins now."""
        extra = self._spare.count(self._kv_bytes - kv_bytes)
        if self._open and extra != self._extra:
            self._extra = extra
            self._open[1].repin(self._spare.placement(extra).pinned)

    def embedding_rows(self, ids: Sequence[int]) -> torch.Tensor:
        """[T, H] in f32. Rank 0 only."""
        if self._embedding is None:
            raise InternalError("embedding rows were asked of a node that is not rank 0, or closed")
        return self._embedding.rows(ids)

    def head_tiles(self) -> Iterator[tuple[int, Weight]]:
        """(first vocabulary row, some rows [R, H] as they are stored), no padding, in order. Rank 0 only. A tile is
        valid until the next one is asked for."""
        key, name = self._pack.head_matrix
        matrix = self._pack.layout(key).matrix(name)
        for tile in self.sweep.head_tiles:
            (piece,) = self.sweep.blocks[tile]
            first = piece.units.start * matrix.rows_per_unit
            with self.resident(tile) as weights:
                stored = weights.matrices[name]
                yield first, stored if isinstance(stored, PanelMatrix) else stored[: matrix.rows - first]

    def head_vectors(self) -> Mapping[str, torch.Tensor]:
        """The vector "final_norm" in f32. Rank 0 only."""
        return self._vectors["head"]

    def trace(self, tracer: Tracer) -> None:
        """From now on, record what is read, and what is waited for."""
        if self._open is not None:
            self._open[0].trace(tracer)
        self.record(tracer)

    def record(self, sink: EventSink | None) -> None:
        """From now on, record what is waited for, or do not any more; for who does not `trace`."""
        if self._open is None:
            return
        labels: list[tuple[int, int]] = []
        if sink is not None:
            named = [(b.kind, b.layer) if isinstance(b, Block) else ("head", -1) for b in self.sweep.blocks]
            labels += [(sink.name(name), layer) for name, layer in named]
        self._open[1].trace(sink, labels)

    def close(self) -> None:
        """Idempotent."""
        if self._open:
            loader, scheduler = self._open
            scheduler.close()
            loader.close()
            self._open = None
        self._reader.close()
        if self._embedding:
            self._embedding.close()
            self._embedding = None
        self._kept.clear()
        self._own.clear()

    def _read_ahead(self, rank0: bool, direct: bool, progress: Callable[[int, int], None] | None) -> None:
        keys: list[BlobKey] = [*range(self._pack.num_layers), *(["head"] if rank0 else [])]  # type: ignore[list-item]
        self._vectors = {key: _load_vectors(self._pack, key, self._reader) for key in keys}
        ring, pinned = self.placement.ring_bytes, self._spare.placement(self._extra).pinned
        residency = Residency(self.sweep.sizes, ring, pinned, 64 << 20)
        loader = PieceLoader(self._pack, self.sweep, ring, self._reader, direct=direct)
        scheduler = Scheduler(residency, loader)
        self._open = loader, scheduler
        total = min(self.weight_bytes, self._vector_bytes + self.sweep.nbytes)
        scheduler.settle(lambda: progress(min(total, self._reader.bytes_read), total) if progress else None)
        self._bytes_ahead = self._reader.bytes_read
        if len(self.placement.pinned) == len(self.sweep.pieces):
            self._kept = {block: self._weights_of(block, loader, scheduler) for block in self.sweep.blocks}
        if rank0:
            self._embedding = EmbeddingTable(self._pack)

    @property
    def _vector_bytes(self) -> int:
        return sum(self._pack.layout(key).vectors_nbytes for key in self._vectors)

    def resident(self, block: Block | HeadTile) -> AbstractContextManager[BlockWeights]:
        """What the forward pass computes with. Matrices are valid inside the `with` only, and not to be changed."""
        found = self._kept.get(block)  # none once they are closed
        if found is not None:
            return nullcontext(found)
        if self._open is None or block not in self.sweep.blocks:
            raise InternalError(f"no weights for {block}: closed, or not a block of this model")
        return self._streamed(block, *self._open)

    @contextmanager
    def _streamed(
        self, block: Block | HeadTile, loader: PieceLoader, scheduler: Scheduler
    ) -> Iterator[BlockWeights]:
        scheduler.enter(self.sweep.numbers[block])
        try:
            yield self._weights_of(block, loader, scheduler)
        finally:
            scheduler.leave()

    def _weights_of(self, block: Block | HeadTile, loader: PieceLoader, scheduler: Scheduler) -> BlockWeights:
        matrices: dict[str, Weight] = {}
        for number, piece in enumerate(self.sweep.blocks[block], self.sweep.first_piece[block]):
            place = scheduler.place(number)
            if place is not None:
                matrices[piece.matrix] = loader.matrix(number, place)
                continue
            if number not in self._own:
                self._own[number] = loader.matrix(number, None)
            matrices[piece.matrix] = self._own[number]
        return BlockWeights(matrices, self._vectors[block.layer if isinstance(block, Block) else "head"])


def _load_vectors(pack: Pack, key: BlobKey, reader: DirectReader) -> Mapping[str, torch.Tensor]:
    """Every vector of the blob (norms, biases: a few kilobytes a layer) in f32, in memory from the start.

    Raises ReadFault, IntegrityError, UserError, OutOfMemory.
    """
    layout = pack.layout(key)
    arena = Arena(layout.vectors_nbytes)
    with DirectFile(pack.blob_path(key)) as file:
        into = arena.buffer(Extent(0, layout.vectors_nbytes))
        for job in read_jobs(file, grouped(layout.vector_ranges()), pack.hashes(key), into):
            reader.submit(job).result()
    vectors = {}
    for vector in layout.vectors:
        extent = Extent(vector.offset, vector.nbytes)
        stored = arena.matrix(extent, 1, vector.length, vector.nbytes, DTYPES[vector.precision])
        vectors[vector.name] = stored[0].to(torch.float32, copy=True)
    arena.close()
    return vectors
