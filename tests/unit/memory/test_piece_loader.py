"""Weights that are dropped leave memory: their pages are the system's again, which reads as zeros."""

import threading
from collections.abc import Callable, Iterator

import pytest

from tpiedge.errors import TpiedgeError
from tpiedge.memory.piece_loader import PieceLoader
from tpiedge.memory.pinning import Placement, place
from tpiedge.memory.reader import DirectReader
from tpiedge.memory.residency import Read, smallest_ring
from tpiedge.memory.sweep import Sweep
from tpiedge.memory.weights import NodeWeights
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, Share

MakePack = Callable[..., Pack]
EVERYTHING = NodeShare(Share(0, 6), Share(0, 2))
DEADLINE_S = 10.0


@pytest.fixture
def loader(make_pack: MakePack) -> Iterator[PieceLoader]:
    """One with a ring for any two pieces."""
    pack = make_pack()
    sweep = Sweep.of(pack, EVERYTHING, True)
    made = PieceLoader(pack, sweep, 2 * max(piece.nbytes for piece in sweep.pieces), DirectReader(2))
    yield made
    made.close()


def read(loader: PieceLoader, piece: int, offset: int | None) -> None:
    """Return once the piece is there."""
    errors: list[TpiedgeError | None] = []
    ended = threading.Event()

    def done(error: TpiedgeError | None) -> None:
        errors.append(error)
        ended.set()

    loader.read(Read(1, piece, offset), done)
    assert ended.wait(DEADLINE_S)
    assert errors == [None]


def test_a_piece_that_is_dropped_leaves_memory_and_its_neighbours_stay(loader: PieceLoader) -> None:
    for piece in (2, 3, 4):
        read(loader, piece, None)
    before = [loader.matrix(piece, None).clone() for piece in (2, 3, 4)]
    assert all(tensor.any() for tensor in before)
    loader.drop(3)
    assert not loader.matrix(3, None).any()
    assert loader.matrix(2, None).equal(before[0])
    assert loader.matrix(4, None).equal(before[2])
    read(loader, 3, None)
    assert loader.matrix(3, None).equal(before[1])


def test_a_ring_that_is_released_leaves_memory_and_what_is_pinned_stays(loader: PieceLoader) -> None:
    read(loader, 0, None)
    read(loader, 1, 0)
    read(loader, 4, 4096 * 16)
    pinned = loader.matrix(0, None).clone()
    assert loader.matrix(1, 0).any()
    assert loader.matrix(4, 4096 * 16).any()
    loader.release()
    assert not loader.matrix(1, 0).any()
    assert not loader.matrix(4, 4096 * 16).any()
    assert loader.matrix(0, None).equal(pinned)


def half(sweep: Sweep) -> Placement:
    found = place(sweep.sizes, smallest_ring(sweep.sizes, frozenset()) + sweep.nbytes // 3)
    assert isinstance(found, Placement)
    return found


def test_weights_that_make_room_for_a_full_kv_cache_leave_memory(make_pack: MakePack) -> None:
    pack = make_pack(layers=4)
    kv_bytes = Sweep.of(pack, EVERYTHING, True).nbytes // 4
    weights = NodeWeights(pack, EVERYTHING, True, half, kv_bytes=kv_bytes)
    opened = weights._open
    assert opened is not None

    def in_memory() -> set[int]:
        pieces = range(len(weights.sweep.pieces))
        return {piece for piece in pieces if opened.loader.matrix(piece, None).any()}

    assert in_memory() > weights.placement.pinned
    allotted = weights.weight_bytes
    weights.make_room(kv_bytes)
    opened.scheduler.settle(lambda: None)  # what is dropped is dropped before anything is read
    assert in_memory() == weights.placement.pinned
    assert weights.weight_bytes < allotted
    weights.make_room(0)
    opened.scheduler.settle(lambda: None)
    assert in_memory() > weights.placement.pinned
    weights.close()
