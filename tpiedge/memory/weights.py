"""Holds the weights that a node computes with."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from tpiedge.errors import InternalError
from tpiedge.kernels.panel_matrix import PanelMatrix, Weight
from tpiedge.memory.arena import DTYPES, Arena, as_matrix
from tpiedge.memory.disk import DiskQueue
from tpiedge.memory.loader import EmbeddingTable, PieceLoader, StoredExperts, stored_matrix
from tpiedge.memory.reader import DirectFile, DirectReader, grouped
from tpiedge.memory.residency import Residency
from tpiedge.memory.scheduler import Counts, Scheduler
from tpiedge.memory.sweep import Block, Placement, SparePins, Sweep
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, Share
from tpiedge.pack.specs import ROUTER, BlobKey
from tpiedge.tracing.tracer import EventSink, Tracer


@dataclass(frozen=True)
class BlockWeights:
    """The node's share of a block."""

    #: Panels, or [rows, cols] with padding rows of zeros; row stride >= cols. Matrices without units are left out.
    matrices: Mapping[str, Weight]
    #: All vectors of the layer, whole, in f32.
    vectors: Mapping[str, torch.Tensor]
    experts: StoredExperts | None = None


class NodeWeights:
    """A node's weights; rank 0's include the embedding and the LM head. If `placement` is None, all weights are
    pinned. `progress` gets the counts of read bytes and of all bytes. Matrices keep their memory alive. Raises
    OutOfMemory, ReadFault, IntegrityError, UserError."""

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
        norm_offset: float = 0.0,
        disk: DiskQueue | None = None,
    ) -> None:
        """`norm_offset` is added to the weights of norms. `kv_bytes` is memory that the empty KV cache lends to
        weights, beside the memory of `placement`. `disk` (default: a queue of its own) is closed with the weights."""
        self.sweep = Sweep.of(pack, share, rank0)
        everything = Placement(0, frozenset(range(len(self.sweep.pieces))))
        self.placement = everything if placement is None else placement(self.sweep)
        self._kv_bytes = kv_bytes
        self._spare = SparePins([piece.nbytes for piece in self.sweep.pieces], self.placement)
        self._now = self._spare.placement(kv_bytes)
        self._norm_offset = norm_offset
        self._pack = pack
        self._reader = DirectReader(disk)
        #: Only rank 0 has some, until the weights are closed.
        self._tables: dict[str, EmbeddingTable] = {}
        self._scheduler: Scheduler | None = None  # until the weights are closed
        #: Only rank 0 has the vectors of "head" and "embedding".
        self.vectors: dict[BlobKey, Mapping[str, torch.Tensor]] = {}
        #: The LM head [V, H] of rank 0 if it is quantised and all weights stay in memory: one product.
        self.head: PanelMatrix | None = None
        self._own: dict[int, Weight | StoredExperts] = {}
        self._kept: dict[Block, BlockWeights] = {}
        try:
            self._read_ahead(rank0, direct, progress)
        except BaseException:
            self.close()
            raise

    @property
    def weight_bytes(self) -> int:
        """Bytes of vectors, pinned pieces and the ring."""
        return self._vector_bytes + self._now.nbytes([piece.nbytes for piece in self.sweep.pieces])

    @property
    def window_bytes(self) -> int:
        return self._now.ring_bytes

    @property
    def disk_read_bytes(self) -> int:
        """Bytes read from disk since the constructor ended, with embedding rows."""
        rows = sum(table.bytes_read for table in self._tables.values())
        return self._reader.bytes_read - self._ahead.nbytes + rows

    @property
    def disk_busy_s(self) -> float:
        """The time with reads from disk, without embedding rows, since the constructor ended."""
        return self._reader.used.busy_s - self._ahead.busy_s

    @property
    def counts(self) -> Counts:
        return self._scheduler.counts if self._scheduler else Counts()

    def kept(self) -> Mapping[Block, BlockWeights] | None:
        """Returns all blocks if they stay in memory until `close`, else None."""
        return self._kept or None

    def make_room(self, kv_bytes: int) -> None:
        """Changes the pins so that the KV cache can use `kv_bytes` of the memory that it lends to weights. Call it
        between two blocks."""
        if self._scheduler is None or self._kept:
            return
        now = self._spare.placement(self._kv_bytes - kv_bytes)
        if now != self._now:
            self._now = now
            self._scheduler.repin(now.pinned)

    def embedding_rows(self, ids: Sequence[int], table: str = "embedding") -> torch.Tensor:
        """Returns the embeddings of `ids` as f32 [T, H]. `table`: another matrix of the embedding's blob. Only rank 0
        may call it."""
        if not self._tables:
            raise InternalError("embedding rows were asked of a node that is not rank 0, or closed")
        return self._tables[table].rows(ids)

    def whole(self, key: BlobKey, name: str) -> Weight:
        """Returns a matrix that the node has whole. Only rank 0 has those of the embedding's blob."""
        return self._whole[key][name]

    def head_tiles(self) -> Iterator[tuple[int, Weight]]:
        """Yields (first vocabulary row, rows [R, H]) of each head tile, valid until the next tile. Rank 0 only."""
        key, name = self._pack.head_matrix
        matrix = self._pack.layout(key).matrix(name)
        for tile in self.sweep.head_tiles:
            (piece,) = self.sweep.blocks[tile]
            first = piece.units.start * matrix.rows_per_unit
            with self.resident(tile) as weights:
                stored = weights.matrices[name]
                yield first, stored if isinstance(stored, PanelMatrix) else stored[: matrix.rows - first]

    def trace(self, tracer: Tracer) -> None:
        if self._scheduler is not None:
            self._scheduler.loader.trace(tracer)
        self.record(tracer)

    def record(self, sink: EventSink | None) -> None:
        """Records waits, but no reads, in `sink` from now on; None ends the recording."""
        if self._scheduler is not None:
            self._scheduler.tracer = sink

    def close(self) -> None:
        if self._scheduler:
            self._scheduler.close()
            self._scheduler.loader.close()
            self._scheduler = None
        self._reader.close()
        for table in self._tables.values():
            table.close()
        self._tables.clear()
        self._kept.clear()
        self.head = None
        self._own.clear()

    def _read_ahead(self, rank0: bool, direct: bool, progress: Callable[[int, int], None] | None) -> None:
        keys: list[BlobKey] = [*range(self._pack.num_layers), *(("head", "embedding") if rank0 else ())]
        self.vectors = {key: self._load_vectors(key) for key in keys}
        self._whole = {key: self._load_whole(key) for key in keys}
        layouts = [self._pack.layout(key) for key in keys]
        whole = (matrix.nbytes for one in layouts for matrix in one.whole)
        self._vector_bytes = sum(one.vectors_nbytes for one in layouts) + sum(whole)
        ring = self.placement.ring_bytes
        residency = Residency(self.sweep.sizes, ring, self._now.pinned, 64 << 20)
        loader = PieceLoader(self._pack, self.sweep, ring, self._reader, direct=direct)
        scheduler = self._scheduler = Scheduler(residency, loader, tuple(self.sweep.blocks))
        total = min(self.weight_bytes, self._vector_bytes + self.sweep.nbytes)
        scheduler.preload(lambda: progress(min(total, self._reader.bytes_read), total) if progress else None)
        self._ahead = self._reader.used
        if len(self.placement.pinned) == len(self.sweep.pieces):
            for block, pieces in self.sweep.blocks.items():
                self._kept[block] = self._weights_of(block, [None] * len(pieces), loader)
            if tiles := self.sweep.head_tiles:
                head = loader.stored(self.sweep.first_piece[tiles[0]], None, len(tiles))
                self.head = head if isinstance(head, PanelMatrix) else None
        if rank0:
            for matrix in self._pack.spec.embedding.matrices:
                if matrix.name not in self._whole["embedding"]:
                    self._tables[matrix.name] = EmbeddingTable(self._pack, matrix.name)

    def resident(self, block: Block) -> AbstractContextManager[BlockWeights]:
        """Keeps a block in memory within the context. The caller must not change the weights."""
        found = self._kept.get(block)  # none once they are closed
        if found is not None:
            return nullcontext(found)
        if self._scheduler is None or block not in self.sweep.blocks:
            raise InternalError(f"no weights for {block}: closed, or not a block of this model")
        return self._streamed(block, self._scheduler)

    @contextmanager
    def _streamed(self, block: Block, scheduler: Scheduler) -> Iterator[BlockWeights]:
        places = scheduler.enter(self.sweep.numbers[block])
        try:
            yield self._weights_of(block, places, scheduler.loader)
        finally:
            scheduler.leave()

    def _weights_of(self, block: Block, places: Sequence[int | None], loader: PieceLoader) -> BlockWeights:
        matrices: dict[str, Weight] = {}
        experts, first = None, self.sweep.first_piece[block]
        for number, (piece, place) in enumerate(zip(self.sweep.blocks[block], places, strict=True), first):
            if place is None and number not in self._own:
                self._own[number] = loader.stored(number, None)
            found = self._own[number] if place is None else loader.stored(number, place)
            if isinstance(found, StoredExperts):
                experts = found
            else:
                matrices[piece.matrix] = found
        if block.kind != "head":
            matrices |= self._whole[block.layer]
        vectors = self.vectors["head" if block.kind == "head" else block.layer]
        return BlockWeights(matrices, vectors, experts)

    def _load_whole(self, key: BlobKey) -> Mapping[str, Weight]:
        """Loads the matrices that every node of the blob has whole. They belong to both blocks of a layer."""
        found: dict[str, Weight] = {}
        for matrix in self._pack.layout(key).whole:
            arena, units = Arena(matrix.nbytes), Share(matrix.units)
            with DirectFile(self._pack.blob_path(key)) as file:
                ranges = grouped(matrix.ranges(0, matrix.units))
                into = arena.buffer(0, matrix.nbytes)
                for job in self._reader.read_ranges(file, ranges, self._pack.hashes(key), into):
                    job.result()
            found[matrix.name] = stored_matrix(arena.bytes(0, matrix.nbytes), matrix, units)
        return found

    def _load_vectors(self, key: BlobKey) -> Mapping[str, torch.Tensor]:
        layout = self._pack.layout(key)
        if not layout.vectors:
            return {}
        arena = Arena(layout.vectors_nbytes)
        with DirectFile(self._pack.blob_path(key)) as file:
            into = arena.buffer(0, layout.vectors_nbytes)
            ranges = grouped(layout.vector_ranges())
            for job in self._reader.read_ranges(file, ranges, self._pack.hashes(key), into):
                job.result()
        vectors = {}
        for vector in layout.vectors:
            dtype, nbytes = DTYPES[vector.precision], vector.nbytes
            stored = as_matrix(arena.bytes(vector.offset, nbytes), 1, vector.length, nbytes, dtype)
            vectors[vector.name] = stored[0].to(torch.float32, copy=True)
            if vector.name.endswith("_norm"):
                vectors[vector.name] += self._norm_offset
        if ROUTER in vectors and isinstance(key, int) and key >= self._pack.distinct_layers:
            # Random layers that repeat would choose the same experts again: this is another random router.
            vectors[ROUTER] = vectors[ROUTER].roll(key)
        arena.close()
        return vectors
