"""What a node reads in a sweep: its pieces of every block in the order of use, and of the LM head on rank 0."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, TypeAlias

from tpiedge.pack.layout import ATTENTION_MATRICES, FFN_MATRICES, MatrixLayout, RowLayout, share_of_matrix
from tpiedge.pack.reader import BlobKey, Pack
from tpiedge.pack.share import NodeShare, Share

BlockKind: TypeAlias = Literal["attention", "ffn"]

_TILE_BYTES = 16 << 20
_MATRICES: dict[BlockKind, tuple[str, ...]] = {"attention": ATTENTION_MATRICES, "ffn": FFN_MATRICES}


@dataclass(frozen=True)
class Block:
    """What is loaded, computed and reduced as one."""

    layer: int
    kind: BlockKind


@dataclass(frozen=True)
class HeadTile:
    """Some rows of the LM head, which are loaded and computed as one."""

    index: int


@dataclass(frozen=True)
class Piece:
    """Some units of one matrix: what is read, placed and given back as one. `nbytes` in storage, padding included."""

    key: BlobKey
    matrix: str
    units: Share
    nbytes: int


@dataclass(frozen=True)
class Sweep:
    """The blocks in the order of use. A piece's number is its place in `pieces`."""

    blocks: Mapping[Block | HeadTile, tuple[Piece, ...]]

    @staticmethod
    def of(pack: Pack, share: NodeShare, rank0: bool) -> "Sweep":
        """Raises UserError for a share beyond the model."""
        layers = chain.from_iterable(_layer_blocks(pack, layer, share) for layer in range(pack.num_layers))
        head = _head_blocks(pack) if rank0 else ()
        return Sweep(dict(chain(layers, head)))

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(chain.from_iterable(self.blocks.values()))

    @cached_property
    def numbers(self) -> Mapping[Block | HeadTile, int]:
        """The number of each block, as Residency counts them."""
        return {block: number for number, block in enumerate(self.blocks)}

    @cached_property
    def first_piece(self) -> Mapping[Block | HeadTile, int]:
        """The number of each block's first piece."""
        first, count = {}, 0
        for block, pieces in self.blocks.items():
            first[block] = count
            count += len(pieces)
        return first

    @property
    def sizes(self) -> Sequence[Sequence[int]]:
        """The bytes of each piece of each block."""
        return [[piece.nbytes for piece in pieces] for pieces in self.blocks.values()]

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.nbytes for piece in self.pieces)

    @cached_property
    def head_tiles(self) -> tuple[HeadTile, ...]:
        return tuple(block for block in self.blocks if isinstance(block, HeadTile))


def _layer_blocks(pack: Pack, layer: int, share: NodeShare) -> Iterator[tuple[Block, tuple[Piece, ...]]]:
    layout, held = pack.layout(layer), _layer_units(pack, layer, share)
    for kind, names in _MATRICES.items():
        pieces = [
            Piece(layer, name, units, layout.matrix(name).span(units.start, units.stop)[1])
            for name, units in held.items()
            if name in names
        ]
        yield Block(layer, kind), tuple(pieces)


def _layer_units(pack: Pack, layer: int, share: NodeShare) -> Mapping[str, Share]:
    """The units (not none) that a node of `share` holds of each matrix of a layer."""
    group = pack.group_size(layer)
    names = [matrix.name for matrix in pack.layout(layer).matrices]
    units = {name: share_of_matrix(name, share, group) for name in names}
    return {name: held for name, held in units.items() if len(held)}


def _head_blocks(pack: Pack) -> Iterator[tuple[HeadTile, tuple[Piece, ...]]]:
    key, name = pack.head_matrix
    matrix = pack.layout(key).matrix(name)
    units = _tile_units(matrix)
    for index, start in enumerate(range(0, matrix.units, units)):
        held = Share(start, min(start + units, matrix.units))
        yield HeadTile(index), (Piece(key, name, held, matrix.span(held.start, held.stop)[1]),)


def head_tile_bytes(pack: Pack) -> int:
    """Bytes of the largest tile of the LM head."""
    key, name = pack.head_matrix
    matrix = pack.layout(key).matrix(name)
    return matrix.span(0, min(_tile_units(matrix), matrix.units))[1]


def _tile_units(matrix: MatrixLayout) -> int:
    # Rows with padding between them cannot be computed in one product.
    if isinstance(matrix, RowLayout) and matrix.padded_rows != matrix.rows_per_unit:
        return 1
    return max(1, _TILE_BYTES // matrix.unit_nbytes(0))
