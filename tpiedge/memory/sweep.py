"""Lists the pieces that a node reads in a sweep, in the order of use, and chooses the pinned pieces. Pure.

Pins are spread evenly over the sweep (TPI-LLM, equations 9 and 10). Memory that the KV cache does not use holds further
pinned pieces. These pieces are chosen in a fixed order, so a growing cache only unpins pieces.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Final, Literal, TypeAlias

from tpiedge.errors import OutOfMemory
from tpiedge.memory.residency import smallest_ring, streamed
from tpiedge.pack.layout import EXPERTS, RowLayout, share_of_matrix
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import Axis, NodeShare, Share
from tpiedge.pack.specs import BlobKey
from tpiedge.units import format_bytes
from tpiedge.wire.fields import Pin, WeightMemory

BlockKind: TypeAlias = Literal["attention", "ffn", "head"]

#: What a block of a layer computes.
BLOCKS: Final[Mapping[BlockKind, tuple[Axis, ...]]] = {
    "attention": ("attention",),
    "ffn": ("ffn", "experts"),
}
_TILE_BYTES = 16 << 20


@dataclass(frozen=True)
class Block:
    """The attention or FFN of a layer (or its experts), or a tile of the LM head. `layer` is the number of the layer or
    tile."""

    layer: int
    kind: BlockKind


@dataclass(frozen=True)
class Piece:
    """Adjacent units of one matrix, or of all experts of a layer, read and placed together. `nbytes` includes
    padding."""

    key: BlobKey
    matrix: str
    units: Share
    nbytes: int


@dataclass(frozen=True)
class Sweep:
    """The blocks in the order of use. A piece's number is its index in `pieces`."""

    blocks: Mapping[Block, tuple[Piece, ...]]

    @staticmethod
    def of(pack: Pack, share: NodeShare, rank0: bool) -> "Sweep":
        """Returns a node's sweep. Raises UserError for a share beyond the model."""
        layers = chain.from_iterable(_layer_blocks(pack, layer, share) for layer in share.layers)
        head = _head_blocks(pack) if rank0 else ()
        return Sweep(dict(chain(layers, head)))

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(chain.from_iterable(self.blocks.values()))

    @cached_property
    def numbers(self) -> Mapping[Block, int]:
        return {block: number for number, block in enumerate(self.blocks)}

    @cached_property
    def first_piece(self) -> Mapping[Block, int]:
        return dict(zip(self.blocks, accumulate(map(len, self.blocks.values()), initial=0), strict=False))

    @property
    def sizes(self) -> Sequence[Sequence[int]]:
        return [[piece.nbytes for piece in pieces] for pieces in self.blocks.values()]

    @cached_property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    @cached_property
    def experts(self) -> frozenset[int]:
        """The pieces of experts, which are always pinned."""
        return frozenset(at for at, piece in enumerate(self.pieces) if piece.matrix == EXPERTS)

    @cached_property
    def head_tiles(self) -> tuple[Block, ...]:
        return tuple(block for block in self.blocks if block.kind == "head")


def _layer_blocks(pack: Pack, layer: int, share: NodeShare) -> Iterator[tuple[Block, tuple[Piece, ...]]]:
    for kind, axes in BLOCKS.items():
        pieces = []
        for part in chain.from_iterable(map(pack.layout(layer).block, axes)):
            units = share_of_matrix(part, share, pack.whole)
            if units:
                pieces.append(Piece(layer, part.name, units, part.held_nbytes(units)))
        yield Block(layer, kind), tuple(pieces)


def _head_blocks(pack: Pack) -> Iterator[tuple[Block, tuple[Piece, ...]]]:
    key, name = pack.head_matrix
    matrix = pack.layout(key).matrix(name)
    units = max(1, _TILE_BYTES // matrix.unit_nbytes(0))
    if isinstance(matrix, RowLayout) and matrix.padded_rows != matrix.rows_per_unit:
        units = 1  # rows with padding between them cannot be computed in one product
    for index, start in enumerate(range(0, matrix.units, units)):
        held = Share(start, min(start + units, matrix.units))
        yield Block(index, "head"), (Piece(key, name, held, matrix.span(held.start, held.stop)[1]),)


def head_tile_bytes(pack: Pack) -> int:
    _, (first,) = next(_head_blocks(pack))
    return first.nbytes


@dataclass(frozen=True)
class Placement:
    ring_bytes: int
    pinned: frozenset[int]

    def pinned_bytes(self, sizes: Sequence[int]) -> int:
        return sum(sizes[piece] for piece in self.pinned)

    def nbytes(self, sizes: Sequence[int]) -> int:
        return self.ring_bytes + self.pinned_bytes(sizes)


class SparePins:
    """Extends a placement: spare bytes hold further pinned pieces. If all pieces fit, there is no ring."""

    def __init__(self, sizes: Sequence[int], placement: Placement) -> None:
        self._order = in_turn([piece for piece in range(len(sizes)) if piece not in placement.pinned])
        self._sums = (0, *accumulate(sizes[piece] for piece in self._order))
        self._placed = placement

    def placement(self, spare_bytes: int) -> Placement:
        everything = self._order and 0 < spare_bytes >= self._sums[-1] - self._placed.ring_bytes
        if everything:
            return Placement(0, self._placed.pinned.union(self._order))
        count = max(0, bisect_right(self._sums, spare_bytes) - 1)
        return Placement(self._placed.ring_bytes, self._placed.pinned.union(self._order[:count]))


def in_turn(pieces: Sequence[int]) -> list[int]:
    """Orders pieces by the reversed bits of their indices, so that the first ones are spread evenly."""
    bits = max(1, (len(pieces) - 1).bit_length())
    places = sorted(range(len(pieces)), key=lambda place: int(f"{place:0{bits}b}"[::-1], 2))
    return [pieces[place] for place in places]


def place(
    blocks: Sequence[Sequence[int]], nbytes: int, mode: Pin = "auto", window_bytes: int | None = None
) -> Placement | int:
    """Divides `nbytes` into a ring and pinned pieces, or returns the fewest bytes that suffice. `blocks` has the bytes
    of each block's pieces."""
    sizes = list(chain.from_iterable(blocks))
    everything = Placement(0, frozenset(range(len(sizes))))
    if mode == "all" or (mode == "auto" and sum(sizes) <= nbytes):
        return everything if sum(sizes) <= nbytes else sum(sizes)
    smallest = smallest_ring(blocks, frozenset())
    if max(smallest, window_bytes or 0) > nbytes:
        return max(smallest, window_bytes or 0)
    best = Placement(ring_bytes(blocks, frozenset(), window_bytes, nbytes), frozenset())
    while mode == "auto":
        # Every pin may make the largest block smaller, and the ring with it, which makes room for more.
        pinned = spread(sizes, nbytes - best.ring_bytes, sum(sizes))
        found = Placement(ring_bytes(blocks, pinned, window_bytes, nbytes), pinned)
        if found.nbytes(sizes) > nbytes or found.pinned_bytes(sizes) <= best.pinned_bytes(sizes):
            break
        best = found
    return best


def spread(sizes: Sequence[int], nbytes: int, total: int) -> frozenset[int]:
    """Chooses pins, which take at most the fraction `nbytes` / `total` of every prefix of the sweep."""
    pinned, passed, held = [], 0, 0
    for number, size in enumerate(sizes):
        passed += size
        if (held + size) * total <= nbytes * passed:
            pinned.append(number)
            held += size
    return frozenset(pinned)


def ring_bytes(
    blocks: Sequence[Sequence[int]], pinned: frozenset[int], window_bytes: int | None, nbytes: int
) -> int:
    """Returns the ring's size. Without `window_bytes`, the ring holds an extra block if `nbytes` allows."""
    smallest = smallest_ring(blocks, pinned)
    if window_bytes is not None:
        return max(window_bytes, smallest)
    return max(smallest, min(nbytes, smallest + max(map(sum, streamed(blocks, pinned)), default=0)))


def placed(memory: WeightMemory, sweep: Sweep) -> Placement:
    """Divides `memory` into a ring and pinned pieces. Experts are pinned beside it. Raises OutOfMemory if the memory is
    too small."""
    of_experts = sum(sweep.pieces[piece].nbytes for piece in sweep.experts)
    room = memory.nbytes or sweep.nbytes - of_experts
    sizes = [
        [0 if piece.matrix == EXPERTS else piece.nbytes for piece in pieces]
        for pieces in sweep.blocks.values()
    ]
    found = place(sizes, room, memory.pin, memory.ring_bytes or None)
    if isinstance(found, int):
        least = format_bytes(found + of_experts)
        raise OutOfMemory(
            f"{format_bytes(room + of_experts)} are too little for the weights: {least} is the least that works"
        )
    return Placement(found.ring_bytes, found.pinned | sweep.experts)


def elastic_bytes(memory: WeightMemory, kv_bytes: int) -> int:
    """Returns how many bytes of an empty KV cache may hold weights."""
    return kv_bytes if memory.pin == "auto" else 0
