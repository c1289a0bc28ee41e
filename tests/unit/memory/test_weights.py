import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from tests.unit.memory.conftest import EVERYTHING, SHAPE, MakePack, narrow
from tests.unit.pack.stored import flip
from tpiedge.errors import IntegrityError, InternalError, ReadFault, UserError
from tpiedge.lab.random_weights import random_rows, random_vector
from tpiedge.memory.arena import DTYPES
from tpiedge.memory.disk import DiskQueue
from tpiedge.memory.loader import EmbeddingTable, _last_of
from tpiedge.memory.residency import smallest_ring
from tpiedge.memory.sweep import Block, Placement, Sweep, place
from tpiedge.memory.weights import NodeWeights
from tpiedge.pack.dtypes import STORED
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, Share
from tpiedge.pack.specs import Precision
from tpiedge.tracing.tracer import Tracer, read_part


@pytest.fixture
def load() -> Iterator[Callable[..., NodeWeights]]:
    made: list[NodeWeights] = []

    def make(pack: Pack, share: NodeShare = EVERYTHING, rank0: bool = False, **kwargs: object) -> NodeWeights:
        made.append(NodeWeights(pack, share, rank0, **kwargs))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for weights in made:
        weights.close()


def original(precision: Precision, name: str, rows: int, cols: int) -> torch.Tensor:
    values = torch.from_numpy(random_rows(7, name, 0, rows, cols, STORED[precision]))
    return values if precision is Precision.F32 else values.view(torch.bfloat16)


@pytest.mark.parametrize("precision", list(DTYPES))
def test_node_share_loads_its_heads_and_tiles(
    make_pack: MakePack, load: Callable[..., NodeWeights], precision: Precision
) -> None:
    weights = load(make_pack(precision), SHAPE.share(Share(1, 4), Share(1, 2)))
    with weights.resident(Block(1, "attention")) as block:
        assert set(block.matrices) == {"q", "k", "v", "o"}
        q, o = original(precision, "1.q", 120, 60), original(precision, "1.o", 60, 120)
        held = block.matrices["q"]
        assert (held.dtype, held.shape) == (DTYPES[precision], (3 * 32, 60))
        assert held.stride(1) == 1
        for at, head in enumerate((1, 2, 3)):
            assert torch.equal(held[at * 32 : at * 32 + 20], q[head * 20 : head * 20 + 20])
            assert torch.equal(
                block.matrices["o"][at * 32 : at * 32 + 20], o[:, head * 20 : head * 20 + 20].T
            )
            assert not held[at * 32 + 20 : at * 32 + 32].any()
        assert block.matrices["k"].shape == (2 * 32, 60)  # KV heads 0 and 1 cover query heads 1, 2, 3
        bias = block.vectors["q_bias"]
        assert (bias.dtype, bias.shape) == (torch.float32, (120,))
        expected = random_vector(7, "1.bias", 120, STORED[precision])
        stored = torch.from_numpy(expected)
        stored = stored if precision is Precision.F32 else stored.view(torch.bfloat16)
        assert torch.equal(bias, stored.float())
    with weights.resident(Block(1, "ffn")) as block:
        assert set(block.matrices) == {"gate", "up", "down"}
        assert torch.equal(block.matrices["up"][:72], original(precision, "1.up", 200, 60)[128:])


def test_empty_attention_share_has_no_matrices(make_pack: MakePack, load: Callable[..., NodeWeights]) -> None:
    share = SHAPE.share(Share(0, 0), Share(0, 1))
    weights = load(make_pack(), share)
    with weights.resident(Block(0, "attention")) as block:
        assert not block.matrices
        assert set(block.vectors) == {"attention_norm", "q_bias"}
    assert weights.weight_bytes == sum(weights._pack.share_bytes(layer, share) for layer in (0, 1))


def test_weight_and_disk_bytes_are_counted_without_pages(
    make_pack: MakePack, load: Callable[..., NodeWeights]
) -> None:
    pack = make_pack(Precision.BF16)
    seen: list[tuple[int, int]] = []
    disk = DiskQueue()
    weights = load(pack, rank0=True, progress=lambda *at: seen.append(at), disk=disk)
    expected = pack.layout(0).nbytes + pack.layout(1).nbytes + pack.layout("head").nbytes
    assert weights.weight_bytes == disk.moved_bytes == expected
    assert seen[-1] == (expected, expected)
    assert disk.used("weights").busy_s > 0
    assert disk.submit("bring", 9, lambda: 9).result(DEADLINE_S) == 9
    assert (weights.disk_read_bytes, weights.disk_busy_s) == (0, 0.0)
    weights.embedding_rows([3, 1002, 3])
    assert weights.disk_read_bytes == 3 * 60 * 2
    weights.close()
    with pytest.raises(InternalError, match="closed before the job began"):
        disk.submit("bring", 9, lambda: 9).result(DEADLINE_S)


@pytest.mark.parametrize("precision", list(DTYPES))
@pytest.mark.parametrize("tied", [False, True])
def test_rank_0_has_embedding_and_head(
    make_pack: MakePack, load: Callable[..., NodeWeights], tied: bool, precision: Precision
) -> None:
    weights = load(make_pack(precision, tied=tied), rank0=True)
    embedding = original(precision, "embedding", 1003, 60)
    ids = [0, 1002, 127, 128, 5, 5, *range(300, 440)]
    rows = weights.embedding_rows(ids)
    assert rows.dtype == torch.float32
    assert torch.equal(rows, embedding[ids].float())
    assert weights.embedding_rows([]).shape == (0, 60)
    head = embedding if tied else original(precision, "head", 1003, 60)
    next_row = 0
    for first, tile in weights.head_tiles():
        assert first == next_row
        assert torch.equal(tile, head[first : first + len(tile)])
        next_row += len(tile)
    assert next_row == 1003
    norm = weights.vectors["head"]["final_norm"]
    assert (norm.dtype, norm.shape) == (torch.float32, (60,))


def test_damage_is_seen_while_loading(make_pack: MakePack) -> None:
    pack = make_pack()
    flip(pack.blob_path(1), pack.layout(1).matrix("k").span(2, 3)[0])
    with pytest.raises(IntegrityError, match=f"unit 2 of k of .*{pack.blob_id(1)}"):
        NodeWeights(pack, EVERYTHING, rank0=False)
    NodeWeights(pack, SHAPE.share(Share(0, 4), Share(0, 2)), rank0=False).close()  # does not hold that unit


def test_damage_in_the_embedding_is_seen_at_first_use(
    make_pack: MakePack, load: Callable[..., NodeWeights]
) -> None:
    pack = make_pack()
    flip(pack.blob_path("embedding"), pack.layout("embedding").matrix("embedding").row_place(200)[0])
    weights = load(pack, rank0=True)
    weights.embedding_rows([0, 127, 256])
    for _ in range(2):
        with pytest.raises(IntegrityError, match="unit 1 of embedding"):
            weights.embedding_rows([0, 130])


def test_share_beyond_model_is_refused(make_pack: MakePack) -> None:
    for share in (SHAPE.share(Share(0, 7), Share(0, 2)), SHAPE.share(Share(0, 6), Share(0, 3))):
        with pytest.raises(UserError, match="do not go with a matrix of"):
            NodeWeights(make_pack(), share, rank0=False)


def test_closed_weights_raise_internal_error(make_pack: MakePack) -> None:
    weights = NodeWeights(make_pack(), EVERYTHING, rank0=True)
    weights.close()
    weights.close()
    with pytest.raises(InternalError, match="closed"):
        weights.resident(Block(0, "ffn"))
    with pytest.raises(InternalError, match="closed"):
        weights.embedding_rows([1])


#: A regular file whose first byte cannot be read: nothing is mapped there.
BROKEN = Path("/proc/self/mem")


def test_failing_disk_raises_read_fault(make_pack: MakePack) -> None:
    pack = make_pack()
    path = pack.blob_path(1)
    path.unlink()
    path.symlink_to(BROKEN)
    with pytest.raises(ReadFault, match=f"at offset 0 of {path}: Input/output error"):
        NodeWeights(pack, EVERYTHING, rank0=False)


@pytest.mark.parametrize("act", ["cut", "emptied", "deleted"])
def test_open_embedding_survives_deletion_but_not_truncation(make_pack: MakePack, act: str) -> None:
    """Rows are read from disk for every prompt. A deleted file lives on as long as it is open."""
    pack = make_pack()
    path, layout = pack.blob_path("embedding"), pack.layout("embedding").matrix("embedding")
    table = EmbeddingTable(pack)
    expected = table.rows([0, 120])
    if act == "deleted":
        path.unlink()
        assert table.rows([0, 120]).equal(expected)
    else:
        kept = layout.row_place(120)[0] + 16 if act == "cut" else 0
        os.truncate(path, kept)
        with pytest.raises(ReadFault, match="the file ends before") as caught:
            table.rows([0, 120])
        assert f"at offset {kept} of {path}" in str(caught.value)
    table.close()


def half(sweep: Sweep) -> Placement:
    found = place(sweep.sizes, smallest_ring(sweep.sizes, frozenset()) + sweep.nbytes // 3)
    assert isinstance(found, Placement)
    return found


def test_make_room_drops_spare_weights_for_kv_cache(make_pack: MakePack) -> None:
    pack = make_pack(layers=4)
    kv_bytes = Sweep.of(pack, pack.whole, True).nbytes // 4
    weights = NodeWeights(pack, pack.whole, True, half, kv_bytes=kv_bytes)
    scheduler = weights._scheduler
    assert scheduler is not None

    def in_memory() -> set[int]:
        pieces = range(len(weights.sweep.pieces))
        stored = {piece: scheduler.loader.stored(piece, None) for piece in pieces}
        return {piece for piece, one in stored.items() if isinstance(one, torch.Tensor) and one.any()}

    assert in_memory() > weights.placement.pinned
    allotted = weights.weight_bytes
    weights.make_room(kv_bytes)
    scheduler.preload(lambda: None)  # what is dropped is dropped before anything is read
    assert in_memory() == weights.placement.pinned
    assert weights.weight_bytes < allotted
    weights.make_room(0)
    scheduler.preload(lambda: None)
    assert in_memory() > weights.placement.pinned
    weights.close()


def test_piece_fails_if_any_of_its_reads_fails() -> None:
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


SWEEPS, DEADLINE_S = 3, 10.0


def test_reads_and_waits_are_traced(make_pack: MakePack, tmp_path: Path) -> None:
    weights, tracer = NodeWeights(pack := make_pack(layers=3), pack.whole, True, narrow), Tracer()
    weights.trace(tracer)
    for _ in range(SWEEPS):
        for block in weights.sweep.blocks:
            if block.kind != "head":
                with weights.resident(block):
                    pass
        assert list(weights.head_tiles())
    stalls, stall_s = weights.counts.stalls, weights.counts.stall_s
    weights.close()
    tracer.write(tmp_path / "part", 0)
    events = read_part(tmp_path / "part").events

    waits = [event for event in events if event.lane == "wait"]
    assert len(waits) == stalls
    assert sum(event.end_s - event.start_s for event in waits) == pytest.approx(stall_s)
    blocks = {("head", -1), *((kind, layer) for layer in range(3) for kind in ("attention", "ffn"))}
    assert {(event.name, event.layer) for event in waits} <= blocks

    nbytes: dict[tuple[str, int], int] = {}
    for event in (event for event in events if event.lane == "load"):
        assert event.start_s < event.end_s
        nbytes[event.name, event.layer] = nbytes.get((event.name, event.layer), 0) + event.nbytes
    for piece in weights.sweep.pieces:
        if isinstance(piece.key, int):
            read = nbytes[piece.matrix, piece.key]
            assert read % piece.nbytes == 0
            assert (SWEEPS - 1) * piece.nbytes <= read <= (SWEEPS + 1) * piece.nbytes
