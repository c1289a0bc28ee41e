"""Weights that are dropped leave memory: their pages are the system's again, which reads as zeros."""

from concurrent.futures import Future
from pathlib import Path

from tests.unit.memory.conftest import EVERYTHING, MakePack
from tpiedge.errors import ReadFault
from tpiedge.memory.loader import _last_of
from tpiedge.memory.residency import smallest_ring
from tpiedge.memory.sweep import Placement, Sweep, place
from tpiedge.memory.weights import NodeWeights


def half(sweep: Sweep) -> Placement:
    found = place(sweep.sizes, smallest_ring(sweep.sizes, frozenset()) + sweep.nbytes // 3)
    assert isinstance(found, Placement)
    return found


def test_weights_that_make_room_for_a_full_kv_cache_leave_memory(make_pack: MakePack) -> None:
    pack = make_pack(layers=4)
    kv_bytes = Sweep.of(pack, EVERYTHING, True).nbytes // 4
    weights = NodeWeights(pack, EVERYTHING, True, half, kv_bytes=kv_bytes)
    scheduler = weights._scheduler
    assert scheduler is not None

    def in_memory() -> set[int]:
        pieces = range(len(weights.sweep.pieces))
        return {piece for piece in pieces if scheduler.loader.matrix(piece, None).any()}

    assert in_memory() > weights.placement.pinned
    allotted = weights.weight_bytes
    weights.make_room(kv_bytes)
    scheduler.settle(lambda: None)  # what is dropped is dropped before anything is read
    assert in_memory() == weights.placement.pinned
    assert weights.weight_bytes < allotted
    weights.make_room(0)
    scheduler.settle(lambda: None)
    assert in_memory() > weights.placement.pinned
    weights.close()


def test_one_of_several_reads_that_fails_fails_the_piece() -> None:
    seen: list[Exception | None] = []
    fault = ReadFault(Path("blob"), 0, 1, "broken")
    finished = _last_of(2, seen.append)
    failed, whole = Future[int](), Future[int]()
    failed.set_exception(fault)
    whole.set_result(1)
    finished(failed)
    assert seen == []
    finished(whole)
    assert seen == [fault]
