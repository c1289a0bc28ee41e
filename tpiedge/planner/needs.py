"""Predicts a node's need of memory, disk and time. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tpiedge.kernels.kv_format import KVFormat
from tpiedge.memory.residency import smallest_ring
from tpiedge.memory.sweep import head_tile_bytes, ring_bytes
from tpiedge.pack.layout import BlobLayout
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, Share, kv_share
from tpiedge.pack.specs import Precision
from tpiedge.units import MIB, format_bytes, format_least
from tpiedge.wire.fields import ACTIVATION_BYTES, ALL_PINNED, Compute, Keeping, KVPrecision, WeightMemory

#: A node's memory beside weights, KV cache and hidden states, with the process that started it: interpreter, torch's
#: libraries (84 MiB of them mapped), page tables, buffers, the scratch memory of a chunk. Measured in control groups.
NODE_BASE_BYTES = 328 * MIB
_COMPANION_BYTES = 64 * MIB  # of it, the part of the master or the worker's agent
_REMEDY = "raise its memory limit or shorten the context"


@dataclass(frozen=True)
class LayerShape:
    heads: int
    kv_heads: int
    ffn_tiles: int

    @property
    def group_size(self) -> int:
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class ModelFacts:
    """The stored bytes of a model's parts. They are bytes of one layer unless a comment says otherwise. A tuple has
    the bytes of one unit of each matrix: the mean of all layers, rounded up."""

    shape: LayerShape
    num_layers: int
    query_unit_bytes: tuple[int, int]  # of q and o
    kv_unit_bytes: tuple[int, int]  # of k and v
    ffn_tile_bytes: tuple[int, int, int]  # of gate, up and down
    last_tile_bytes: tuple[int, int, int]
    resident_bytes: int
    head_bytes: int
    kv_part_bytes: int  # of one KV head in one layer for a page
    kv_page_tokens: int
    capacity_tokens: int = 0  # of the whole KV cache
    head_tile_bytes: int = 0  # of the LM head that are read at a time
    row_bytes: int = 0  # of a token's hidden state in f32
    largest: float = 1.0  # a matrix in the layer where it is largest, beside the mean
    smaller_precision: str = ""  # the smallest precision; "" if the model is stored in it
    int8: bool = False  # the arithmetic of the layers
    head_int8: bool = False
    needs_native: bool = False  # the arithmetic is int8, or keys and values are quantised
    name: str = "the model"  # for the user

    @property
    def kv_head_bytes(self) -> int:
        """Bytes of a KV head in all layers and pages."""
        return self.num_layers * -(-self.capacity_tokens // self.kv_page_tokens) * self.kv_part_bytes

    @cached_property
    def blocks_of_layer(self) -> tuple[tuple[int, ...], ...]:
        """Bytes of each matrix of a whole layer, by block."""
        whole = NodeShare(Share(0, self.shape.heads), Share(0, self.shape.ffn_tiles))
        return pieces_of_blocks(self, 1, whole)


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


def model_facts(pack: Pack, *, head_dim: int, compute: Compute, kv: KVPrecision) -> ModelFacts:
    """Returns facts of a model whose layers are alike, but for the precisions of matrices."""
    layer, stored, int8 = pack.layout(0), KVFormat(kv, head_dim), compute == "int8"
    layouts, largest = [pack.layout(number) for number in range(pack.num_layers)], 1.0

    def mean(name: str, unit: int = 0) -> int:
        nonlocal largest
        sizes = [layout.matrix(name).unit_nbytes(unit) for layout in layouts]
        largest = max(largest, max(sizes) * len(sizes) / sum(sizes))
        return -(-sum(sizes) // len(sizes))

    first = {one: mean(one) for one in ("q", "k", "v", "o", "gate", "up", "down")}
    last = {one: mean(one, layer.matrix(one).units - 1) for one in ("gate", "up", "down")}
    q4_nbytes = pack.num_layers * BlobLayout.of(pack.spec.layers[0], Precision.Q4).nbytes
    key, head = pack.head_matrix
    head_layout = pack.layout(key)
    return ModelFacts(
        shape=LayerShape(layer.matrix("q").units, layer.matrix("k").units, layer.matrix("gate").units),
        num_layers=pack.num_layers,
        query_unit_bytes=(first["q"], first["o"]),
        kv_unit_bytes=(first["k"], first["v"]),
        ffn_tile_bytes=(first["gate"], first["up"], first["down"]),
        last_tile_bytes=(last["gate"], last["up"], last["down"]),
        resident_bytes=layer.vectors_nbytes,
        head_bytes=head_layout.matrix(head).nbytes + pack.layout("head").vectors_nbytes,
        kv_part_bytes=stored.part_nbytes,
        kv_page_tokens=stored.page_positions,
        head_tile_bytes=head_tile_bytes(pack),
        row_bytes=4 * layer.matrix("q").cols,
        largest=largest,
        smaller_precision="q4" if q4_nbytes < sum(layout.nbytes for layout in layouts) else "",
        int8=int8,
        head_int8=int8 and head_layout.precision.quantised,
        needs_native=int8 or stored.quantised,
    )


def base_bytes(model: ModelFacts, node: NodeFacts) -> int:
    activations = min(ACTIVATION_BYTES, model.row_bytes * model.capacity_tokens)
    return NODE_BASE_BYTES - (_COMPANION_BYTES if node.alone else 0) + activations


def whole_need(model: ModelFacts, rank: int, share: NodeShare, node: NodeFacts) -> NodeNeed:
    """Returns the need of a node that holds its whole share in memory."""
    kv_heads = len(kv_share(share.attention, model.shape.group_size))
    layers = model.num_layers * (layer_bytes(model, share) + model.resident_bytes)
    head = model.head_bytes if rank == 0 else 0
    return NodeNeed(layers + head, kv_heads * model.kv_head_bytes, base_bytes(model, node))


def layer_bytes(model: ModelFacts, share: NodeShare) -> int:
    return sum(map(sum, pieces_of_blocks(model, 1, share)))


def pieces_of_blocks(model: ModelFacts, rank: int, share: NodeShare) -> tuple[tuple[int, ...], ...]:
    """Returns the bytes of each nonempty matrix, by block. Rank 0 also has a tile of the LM head."""
    heads, kv_heads = len(share.attention), len(kv_share(share.attention, model.shape.group_size))
    (q, o), (k, v) = model.query_unit_bytes, model.kv_unit_bytes
    has_last = len(share.ffn) > 0 and share.ffn.stop == model.shape.ffn_tiles
    tiles = zip(model.ffn_tile_bytes, model.last_tile_bytes, strict=True)
    ffn = [(len(share.ffn) - has_last) * tile + has_last * last for tile, last in tiles]
    head = (model.head_tile_bytes if rank == 0 else 0,)
    blocks = ((heads * q, kv_heads * k, kv_heads * v, heads * o), ffn, head)
    return tuple(tuple(size for size in sizes if size) for sizes in blocks)


def enlarged(model: ModelFacts, blocks: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """Returns bytes for a ring that holds the largest layer, from those of a layer in the mean."""
    return [[math.ceil(size * model.largest) for size in sizes] for sizes in blocks]


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
    matrices, blocks = _matrix_bytes(model, whole), enlarged(model, pieces_of_blocks(model, rank, share))
    window = _window(blocks, matrices, node.keeping)
    return whole.total_bytes - matrices + _least(blocks, matrices, window, node.keeping)


def node_seconds(model: ModelFacts, share: NodeShare, node: NodeFacts, need: NodeNeed) -> float:
    """Predicts a sweep's seconds in all layers."""
    loading = need.streamed_bytes / node.disk_bytes_per_s if node.disk_bytes_per_s else 0.0
    return max(model.num_layers * layer_bytes(model, share) / node.speed, loading)


def head_seconds(model: ModelFacts, node: NodeFacts) -> float:
    """Predicts a token's seconds in the LM head."""
    return model.head_bytes / (node.head_speed or node.speed)


def _held(
    model: ModelFacts, rank: int, share: NodeShare, whole: NodeNeed, node: NodeFacts
) -> NodeNeed | Infeasible:
    keeping, matrices = node.keeping, _matrix_bytes(model, whole)
    fixed = whole.total_bytes - matrices
    has_room = node.memory_bytes is None or whole.total_bytes <= node.memory_bytes
    if has_room and keeping.pin == "auto" and not (keeping.window_bytes or keeping.window_blocks):
        return replace(whole, weights=WeightMemory(matrices, 0, "all", keeping.direct))
    blocks = enlarged(model, pieces_of_blocks(model, rank, share))
    window = _window(blocks, matrices, keeping)
    least = _least(blocks, matrices, window, keeping)
    enough = max(matrices, least)  # a ring may be larger than all matrices of a small model
    room = enough if node.memory_bytes is None else min(enough, node.memory_bytes - fixed)
    if room < least:
        has = format_bytes(node.memory_bytes or 0)
        return Infeasible(
            f"node {rank} needs at least {format_least(fixed + least)} (weights {format_bytes(least)} of "
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


def _matrix_bytes(model: ModelFacts, whole: NodeNeed) -> int:
    return whole.weight_bytes - model.num_layers * model.resident_bytes
