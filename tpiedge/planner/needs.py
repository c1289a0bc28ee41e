"""Predicts a node's need of memory, disk and time. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from tpiedge.kernels.kv_format import KVFormat, page_positions
from tpiedge.memory.residency import smallest_ring
from tpiedge.memory.sweep import BLOCKS, head_tile_bytes, ring_bytes
from tpiedge.pack.layout import ALIGN, BlobLayout, ExpertsLayout, StoredPart
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import Axis, NodeShare, Share, units_of
from tpiedge.units import MIB, format_bytes, format_least
from tpiedge.wire.fields import ACTIVATION_BYTES, ALL_PINNED, Compute, Keeping, KVPrecision, WeightMemory

#: A node's memory beside weights, KV cache and hidden states, with the process that started it: interpreter, torch's
#: libraries (84 MiB of them mapped), page tables, buffers, the scratch memory of a chunk. Measured in control groups.
NODE_BASE_BYTES = 328 * MIB
_COMPANION_BYTES = 64 * MIB  # of it, the part of the master or the worker's agent
_EXPERTS_BYTES = 8 * MIB  # for what some experts compute: BATCH_BYTES of kernels/native/experts.cpp
_INDEX_BYTES = 400  # of a page file's entry in kv/store.py
_MOVED_PAGES = 2  # as much memory, with all heads, do pages on their way from and to the disk take
_REMEDY = "raise its memory limit or shorten the context"
_NOTHING = Share(0)


@dataclass(frozen=True)
class LayerShape:
    """The layers, and the units that nodes divide. `kv_heads`: KV heads of the layer that has fewest. `experts`: tiles
    of every expert."""

    heads: int
    kv_heads: int
    ffn_tiles: int
    layers: int
    experts: int = 0

    @property
    def group_size(self) -> int:
        return self.heads // self.kv_heads

    @cached_property
    def whole(self) -> NodeShare:
        return self.share(Share(self.heads), Share(self.ffn_tiles), Share(self.experts))

    def share(self, heads: Share, tiles: Share, experts: Share = _NOTHING) -> NodeShare:
        """Returns a share of all layers."""
        axes: dict[Axis, tuple[int, Share]] = {
            "attention": (self.heads, heads),
            "ffn": (self.ffn_tiles, tiles),
            "experts": (self.experts, experts),
        }
        return NodeShare(Share(self.layers), {axis: own for axis, (units, own) in axes.items() if units})


@dataclass(frozen=True)
class MatrixFacts:
    """The stored bytes of one unit, and of the last one, of a matrix or of several that have the same axis and number
    of units. A token needs the part `used` of them."""

    axis: Axis
    units: int
    unit_bytes: int
    last_bytes: int
    used: float = 1.0

    def nbytes(self, shape: LayerShape, share: NodeShare) -> int:
        held = units_of(share.along(self.axis), len(shape.whole.axes[self.axis]), self.units)
        shorter = self.unit_bytes - self.last_bytes if held and held.stop == self.units else 0
        return len(held) * self.unit_bytes - shorter

    def within(self, other: "MatrixFacts") -> bool:
        """Whether every share has at least as many bytes in `other`."""
        same = (self.axis, self.units) == (other.axis, other.units)
        return same and self.unit_bytes <= other.unit_bytes and self.last_bytes <= other.last_bytes


BlockFacts: TypeAlias = tuple[MatrixFacts, ...]


@dataclass(frozen=True)
class ModelFacts:
    """The stored bytes of a model's parts."""

    shape: LayerShape
    blocks: Mapping[BlockFacts, int]  # the number of blocks that are alike
    kv: Mapping[int, int]  # KV heads -> bytes of one head for a page, in all layers that keep so many
    kv_page_tokens: int
    resident_bytes: int  # of the layers' vectors and of matrices that are whole on every node
    head_bytes: int
    replicated_bytes: int = 0  # of matrices that are whole on every node
    rank0_bytes: int = 0  # of what rank 0 keeps of the embedding, beside tables of which it reads rows
    capacity_tokens: int = 0  # of the whole KV cache
    head_tile_bytes: int = 0  # of the LM head that are read at a time
    row_bytes: int = 0  # of a token's hidden state in f32
    input_bytes: int = 0  # of a token's inputs of all layers in f32
    smaller_precision: str = ""  # the smallest precision; "" if the model is stored in it
    int8: bool = False  # the arithmetic of the layers
    head_int8: bool = False
    needs_native: bool = False  # the arithmetic is int8, or keys and values are quantised
    name: str = "the model"  # for the user

    def resident(self, rank: int) -> int:
        """Returns the bytes that a node keeps beside its share and the LM head."""
        return self.resident_bytes + (self.rank0_bytes if rank == 0 else 0)

    @property
    def exchanges(self) -> int:
        """All-reduces of a sweep."""
        return sum(self.blocks.values())

    @property
    def second_sums(self) -> int:
        """All-reduces of a sweep that sum two rows of hidden states for each token: of an FFN, and of experts beside
        it."""
        return sum(count for block, count in self.blocks.items() if len({one.axis for one in block}) > 1)

    @property
    def position_bytes(self) -> float:
        """Bytes of a position in the whole KV cache."""
        return sum(heads * nbytes for heads, nbytes in self.kv.items()) / self.kv_page_tokens

    @cached_property
    def matrices(self) -> tuple[MatrixFacts, ...]:
        """All layers' matrices, added up by axis, number of units and part that a token needs."""
        sums: dict[tuple[Axis, int, float], tuple[int, int]] = {}
        for block, count in self.blocks.items():
            for one in block:
                key = one.axis, one.units, one.used
                unit, last = sums.get(key, (0, 0))
                sums[key] = unit + count * one.unit_bytes, last + count * one.last_bytes
        return tuple(MatrixFacts(axis, units, *nbytes, used) for (axis, units, used), nbytes in sums.items())

    @cached_property
    def largest_blocks(self) -> tuple[BlockFacts, ...]:
        """The blocks that are not within another one."""
        blocks = self.blocks
        return tuple(one for one in blocks if not any(_is_within(one, other) for other in blocks))

    @cached_property
    def whole_blocks(self) -> tuple[tuple[int, ...], ...]:
        """Bytes of each matrix of the largest blocks."""
        return pieces_of_blocks(self, 1, self.shape.whole)

    @cached_property
    def whole_bytes(self) -> tuple[int, int]:
        """Bytes of (the matrices that nodes divide, the KV cache)."""
        return layers_bytes(self, self.shape.whole), kv_bytes(self, self.shape.whole)


@dataclass(frozen=True)
class NodeFacts:
    """A node's abilities. All speeds are on one scale."""

    speed: float  # layer weights in bytes per second, or relative
    memory_bytes: int | None = None
    free_disk_bytes: int | None = None  # includes the model's shards on the disk
    disk_bytes_per_s: float | None = None  # None: no streaming
    keeping: Keeping = field(default_factory=Keeping)
    alone: bool = False  # the process that started it is counted with another node
    head_speed: float | None = None  # None: equals `speed`
    keep_bytes: int = 0  # disk space that its owner gives to kept KV pages
    park_bytes: int = 0  # the same, to parked ones

    @property
    def streams(self) -> bool:
        return self.disk_bytes_per_s is not None and self.keeping.pin != "all"


@dataclass(frozen=True)
class NodeNeed:
    """A node's predicted bytes. `streamed_bytes` counts weights that are read in every sweep."""

    weight_bytes: int
    kv_bytes: int
    base_bytes: int
    weights: WeightMemory = ALL_PINNED
    streamed_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.base_bytes


@dataclass(frozen=True)
class Infeasible:
    """The result if no plan is possible. `reason` is one line with the numbers."""

    reason: str


def model_facts(pack: Pack, *, compute: Compute, kv: KVPrecision) -> ModelFacts:
    layouts, int8 = [pack.layout(number) for number in range(pack.num_layers)], compute == "int8"
    blocks = Counter(filter(None, (_block_facts(one, axes) for one in layouts for axes in BLOCKS.values())))
    # A layer without k keeps no keys.
    keys = [matrix for layout in layouts for matrix in layout.matrices if matrix.name in ("k", "k_whole")]
    formats = [KVFormat(kv, matrix.rows_per_unit) for matrix in keys]
    page_tokens = page_positions(formats) if formats else 1
    kept = Counter[int]()
    for matrix, stored in zip(keys, formats, strict=True):
        kept[matrix.units] += stored.part_bytes(page_tokens)
    replicated = sum(matrix.nbytes for layout in layouts for matrix in layout.whole)
    key, head = pack.head_matrix
    head_layout, heads = pack.layout(key), len(pack.whole.along("attention"))
    projections = (embedding := pack.layout("embedding")).whole
    tiles, experts = (len(pack.whole.along(axis)) for axis in BLOCKS["ffn"])
    return ModelFacts(
        shape=LayerShape(heads, min(kept, default=heads), tiles, pack.num_layers, experts),
        blocks=blocks,
        kv=kept,
        kv_page_tokens=page_tokens,
        resident_bytes=sum(layout.vectors_nbytes for layout in layouts) + replicated,
        head_bytes=head_layout.matrix(head).nbytes + pack.layout("head").vectors_nbytes,
        replicated_bytes=replicated,
        rank0_bytes=embedding.vectors_nbytes + sum(matrix.nbytes for matrix in projections),
        head_tile_bytes=head_tile_bytes(pack),
        row_bytes=4 * head_layout.matrix(head).cols,
        input_bytes=4 * sum(matrix.rows for matrix in projections),
        smaller_precision="q4" if pack.q4_nbytes < sum(layout.nbytes for layout in layouts) else "",
        int8=int8,
        head_int8=int8 and head_layout.precision.quantised,
        needs_native=int8 or kv in ("q8", "q4"),
    )


def _block_facts(layout: BlobLayout, axes: Sequence[Axis]) -> BlockFacts:
    def facts(axis: Axis, part: StoredPart) -> MatrixFacts:
        units = Share(part.units)
        used = part.chosen / part.count if isinstance(part, ExpertsLayout) else 1.0
        return MatrixFacts(axis, part.units, part.held_nbytes(units[:1]), part.held_nbytes(units[-1:]), used)

    return tuple(facts(axis, part) for axis in axes for part in layout.block(axis))


def _is_within(block: BlockFacts, other: BlockFacts) -> bool:
    """Whether each matrix is within one of `other`, in order."""
    others = iter(other)
    return block != other and all(any(one.within(larger) for larger in others) for one in block)


def base_bytes(model: ModelFacts, node: NodeFacts) -> int:
    activations = min(ACTIVATION_BYTES, (model.row_bytes + model.input_bytes) * model.capacity_tokens)
    experts = _EXPERTS_BYTES if model.shape.experts else 0
    given, staging = node.keep_bytes + node.park_bytes, 0
    if given:
        moved = _MOVED_PAGES * sum(heads * nbytes for heads, nbytes in model.kv.items())
        # A file has at least one head of each layer.
        staging = moved + _INDEX_BYTES * (given // max(ALIGN, sum(model.kv.values())))
    return NODE_BASE_BYTES - (_COMPANION_BYTES if node.alone else 0) + activations + experts + staging


def whole_need(model: ModelFacts, rank: int, share: NodeShare, node: NodeFacts) -> NodeNeed:
    """Returns the need of a node that holds its whole share in memory."""
    layers, head = layers_bytes(model, share) + model.resident(rank), model.head_bytes if rank == 0 else 0
    return NodeNeed(layers + head, kv_bytes(model, share), base_bytes(model, node))


def kv_bytes(model: ModelFacts, share: NodeShare) -> int:
    pages, queries = -(-model.capacity_tokens // model.kv_page_tokens), share.along("attention")
    held = (len(units_of(queries, model.shape.heads, own)) * size for own, size in model.kv.items())
    return pages * sum(held)


def layers_bytes(model: ModelFacts, share: NodeShare) -> int:
    """Returns the bytes of a share's matrices in all layers, without replicated ones."""
    return sum(one.nbytes(model.shape, share) for one in model.matrices)


def used_bytes(model: ModelFacts, share: NodeShare) -> float:
    """Returns the bytes of a share's matrices that a token needs, without replicated ones."""
    return sum(one.used * one.nbytes(model.shape, share) for one in model.matrices)


def expert_bytes(model: ModelFacts, share: NodeShare) -> int:
    """Returns the bytes of a share's experts, which are never streamed."""
    return sum(one.nbytes(model.shape, share) for one in model.matrices if one.axis == "experts")


def pieces_of_blocks(model: ModelFacts, rank: int, share: NodeShare) -> tuple[tuple[int, ...], ...]:
    """Returns the bytes of each nonempty matrix of the largest blocks, without experts. Rank 0 also has a tile of the
    LM head."""
    blocks = [
        [one.nbytes(model.shape, share) for one in block if one.axis != "experts"]
        for block in model.largest_blocks
    ]
    head = [model.head_tile_bytes if rank == 0 else 0]
    return tuple(tuple(filter(None, sizes)) for sizes in (*blocks, head))


def node_need(model: ModelFacts, rank: int, share: NodeShare, node: NodeFacts) -> NodeNeed | Infeasible:
    """Returns the node's need. A node that streams holds as much of its weights as fits."""
    whole = whole_need(model, rank, share, node)
    if node.free_disk_bytes is not None and whole.weight_bytes > node.free_disk_bytes:
        return Infeasible(
            f"node {rank} needs {format_bytes(whole.weight_bytes)} on disk but has "
            f"{format_bytes(node.free_disk_bytes)} free"
        )
    if node.streams:
        return _held(model, rank, share, whole, node)
    if node.memory_bytes is not None and whole.total_bytes > node.memory_bytes:
        weights, kv, base = map(format_bytes, (whole.weight_bytes, whole.kv_bytes, whole.base_bytes))
        return Infeasible(
            f"node {rank} needs {format_bytes(whole.total_bytes)} (weights {weights}, KV cache {kv}, program {base}) "
            f"but may use {format_bytes(node.memory_bytes)}: "
            f"{format_bytes(whole.total_bytes - node.memory_bytes)} too little; {_REMEDY}"
        )
    return replace(whole, weights=WeightMemory(0, 0, "all", node.keeping.direct))


def smallest_bytes(model: ModelFacts, rank: int, share: NodeShare, node: NodeFacts) -> int:
    """Returns the least memory with which the node works."""
    whole = whole_need(model, rank, share, node)
    matrices, blocks = _matrix_bytes(model, rank, share, whole), pieces_of_blocks(model, rank, share)
    window = _window(blocks, matrices, node.keeping)
    return whole.total_bytes - matrices + _least(blocks, matrices, window, node.keeping)


def node_seconds(model: ModelFacts, share: NodeShare, node: NodeFacts, need: NodeNeed) -> float:
    """Predicts a sweep's seconds in all layers."""
    loading = need.streamed_bytes / node.disk_bytes_per_s if node.disk_bytes_per_s else 0.0
    return max((used_bytes(model, share) + model.replicated_bytes) / node.speed, loading)


def head_seconds(model: ModelFacts, node: NodeFacts) -> float:
    """Predicts a token's seconds in the LM head and in what rank 0 computes before the layers."""
    return (model.head_bytes + model.rank0_bytes) / (node.head_speed or node.speed)


def _held(
    model: ModelFacts, rank: int, share: NodeShare, whole: NodeNeed, node: NodeFacts
) -> NodeNeed | Infeasible:
    keeping, matrices = node.keeping, _matrix_bytes(model, rank, share, whole)
    fixed = whole.total_bytes - matrices
    has_room = node.memory_bytes is None or whole.total_bytes <= node.memory_bytes
    if has_room and keeping.pin == "auto" and not (keeping.window_bytes or keeping.window_blocks):
        return replace(whole, weights=WeightMemory(matrices, 0, "all", keeping.direct))
    blocks = pieces_of_blocks(model, rank, share)
    window = _window(blocks, matrices, keeping)
    least = _least(blocks, matrices, window, keeping)
    enough = max(matrices, least)  # a ring may be larger than all matrices of a small model
    room = enough if node.memory_bytes is None else min(enough, node.memory_bytes - fixed)
    if room < least:
        has, kept_bytes = format_bytes(node.memory_bytes or 0), expert_bytes(model, share)
        experts = f"experts {format_bytes(kept_bytes)}, " if kept_bytes else ""
        return Infeasible(
            f"node {rank} needs at least {format_least(fixed + least)} ({experts}weights {format_bytes(least)} of "
            f"{format_bytes(matrices)}, KV cache {format_bytes(whole.kv_bytes)}, program "
            f"{format_bytes(whole.base_bytes)}) but may use {has}; {_REMEDY}"
        )
    kept, streamed = room, 0
    if keeping.pin == "none" or room < matrices:
        ring = ring_bytes(blocks, frozenset(), window or None, room)
        kept = ring if keeping.pin == "none" else room
        streamed = matrices - (kept - ring)
    # Pinned weights have no use for memory that the KV cache leaves free.
    pin = "all" if keeping.pin == "auto" and not streamed else keeping.pin
    weights = WeightMemory(room, window, pin, keeping.direct)
    return replace(
        whole, weight_bytes=whole.weight_bytes - matrices + kept, weights=weights, streamed_bytes=streamed
    )


def _least(blocks: Sequence[Sequence[int]], matrices: int, window: int, keeping: Keeping) -> int:
    if keeping.pin == "all":
        return matrices
    least = max(smallest_ring(blocks, frozenset()), window)
    return least if keeping.pin == "none" else min(matrices, least)


def _window(blocks: Sequence[Sequence[int]], matrices: int, keeping: Keeping) -> int:
    """Returns the bytes of the ring that the user wants, or 0."""
    return min(keeping.window_bytes or keeping.window_blocks * max(map(sum, blocks)), matrices)


def _matrix_bytes(model: ModelFacts, rank: int, share: NodeShare, whole: NodeNeed) -> int:
    """Returns the bytes of what can be streamed."""
    return whole.weight_bytes - model.resident(rank) - expert_bytes(model, share)
