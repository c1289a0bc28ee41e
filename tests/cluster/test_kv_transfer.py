"""Requests go on in another cluster, with another split, with the keys and values that they had: the same tokens come,
and next to nothing is computed anew."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.cluster.packs import Packs, References, split_of
from tests.fakes.cluster import InProcessCluster
from tpiedge.collectives.communicator import Tag
from tpiedge.engine import kv_transfer
from tpiedge.errors import Misconduct
from tpiedge.kernels.kv_format import KVFormat, page_positions
from tpiedge.model.spec import config_of_pack
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, kv_share
from tpiedge.pack.specs import Precision
from tpiedge.planner.kv_transfer import KVHolder, KVMoves, plan_moves
from tpiedge.wire.control import Finished, Halt, KVSnapshot, Token
from tpiedge.wire.requests import GenerationRequest, Sampling

TOKENS = 24
CAPACITY = 512
#: More than a page.
LONG = 140
#: Bytes that are left of a layer at least; of bytes that look random so few are zeros, one in that many.
PART = 4096
PART_OF_ZEROS = 200
#: (shares before, machines before, shares after, machines after); "" is the master's.
CHANGES = {
    "a machine joins": ("1,1", ("", "ann"), "1,1,1", ("", "ann", "bob")),
    "one leaves": ("1,1,1", ("", "ann", "bob"), "1,1", ("", "bob")),
    "one takes another's place": ("1,1", ("", "ann"), "1,1", ("", "bob")),
    "the master does it alone": ("1,1", ("", "ann"), "1", ("",)),
    "the master is helped": ("1", ("",), "1,3", ("", "ann")),
    "they change places": ("1,2,1", ("", "ann", "bob"), "2,1,1", ("", "bob", "ann")),
    "the master has no heads": ("1,1", ("", "ann"), "0:1,1", ("", "ann")),
    "all heads were elsewhere": ("0:1,1", ("", "ann"), "1,1:0", ("", "ann")),
}


def requests(ids: tuple[int, ...]) -> list[GenerationRequest]:
    long = (ids * (LONG // len(ids) + 1))[:LONG]
    drawn = Sampling(1.0, 40, 0.9, seed=7)
    return [
        GenerationRequest("one", (*long, *ids[:3]), TOKENS, ignore_eos=True, keep_prefix=True),
        GenerationRequest("two", (*long, *ids[3:5]), TOKENS, ignore_eos=True, keep_prefix=True),
        GenerationRequest("three", ids[:6], TOKENS, drawn, ignore_eos=True),
    ]


def play(
    cluster: InProcessCluster, submitted: Sequence[GenerationRequest], steps: int | None = None
) -> dict[str, list[int]]:
    told: dict[str, list[int]] = {one.id: list(one.answer_ids) for one in submitted}

    def append(message: object) -> None:
        assert isinstance(message, Token)
        assert message.index == len(told[message.request])
        told[message.request].append(message.token)

    for one in submitted:
        cluster.leader.submit(one, append)
    finished: list[Finished] = []
    while not cluster.leader.idle and (steps is None or steps > 0):
        finished += cluster.leader.step()
        steps = None if steps is None else steps - 1
    return told


class Change:
    def __init__(self, pack: Path, change: str, folder: Path) -> None:
        config = config_of_pack(Pack.open(pack))
        self.private = not Pack.open(pack).precision.quantised
        before, machines, after, machines_after = CHANGES[change]
        self._pack = pack
        self._before, self._after = split_of(config, before), split_of(config, after)
        self.folders = {name: folder / (name or "master") for name in {*machines, *machines_after}}
        self._machines, self._machines_after = machines, machines_after

        def holders(names: Sequence[str], shares: Sequence[NodeShare]) -> list[KVHolder]:
            pairs = zip(names, shares, strict=True)
            return [
                KVHolder(name, kv_share(share.along("attention"), config.group_size)) for name, share in pairs
            ]

        self.moves: KVMoves = plan_moves(
            holders(machines, self._before), holders(machines_after, self._after)
        )

    def old(self, capacity: int = CAPACITY) -> InProcessCluster:
        return self._cluster(capacity, self._before, self._machines, None)

    def new(self, pages: int, capacity: int = CAPACITY) -> InProcessCluster:
        return self._cluster(
            capacity,
            self._after,
            self._machines_after,
            KVSnapshot(1, pages, self.private, self.moves.scattered),
        )

    @property
    def halt(self) -> Halt:
        kept = tuple((one.start, one.stop) for one in self.moves.kept)
        return Halt(1, 2, kept, self.moves.stored, self.moves.gathered)

    @property
    def snapshots(self) -> list[Path]:
        return [path for folder in self.folders.values() if folder.is_dir() for path in folder.glob("*")]

    def _cluster(
        self, capacity: int, shares: Sequence[NodeShare], machines: Sequence[str], snapshot: KVSnapshot | None
    ) -> InProcessCluster:
        return InProcessCluster(
            self._pack,
            shares,
            capacity_tokens=capacity,
            sequences=3,
            folders=[self.folders[name] for name in machines],
            snapshot=snapshot,
        )


def page_of(pack: Path) -> int:
    opened = Pack.open(pack)
    formats = [
        KVFormat("bf16" if opened.precision.quantised else "f32", layer.attention.width)
        for layer in config_of_pack(opened).layers
        if layer.attention.keys_of is None
    ]
    size = page_positions(formats)
    return LONG // size * size


def undisturbed(ids: tuple[int, ...], pack: Path) -> dict[str, list[int]]:
    shares = split_of(config_of_pack(Pack.open(pack)), "1")
    with InProcessCluster(pack, shares, capacity_tokens=512, sequences=3) as cluster:
        return play(cluster, requests(ids))


def going_on(ids: tuple[int, ...], told: dict[str, list[int]]) -> list[GenerationRequest]:
    submitted = requests(ids)
    return [replace(one, answer_ids=tuple(told[one.id])) for one in submitted if len(told[one.id]) < TOKENS]


def assert_continued(
    ids: tuple[int, ...], pack: Path, change: str, steps: int, folder: Path, anew: int = 0
) -> None:
    changed = Change(pack, change, folder)
    with changed.old() as cluster:
        told = play(cluster, requests(ids), steps)
        pages, why = cluster.save(changed.halt)
        before = cluster.computed
    assert not why
    assert pages
    with changed.new(pages) as cluster:
        after = play(cluster, going_on(ids, told))
        computed = cluster.computed
    assert {**told, **after} == undisturbed(ids, pack)
    # In f32 keys and values show who computed them, so that only their own request has them in another cluster.
    shared = 0 if changed.private and steps == 1 else page_of(pack)
    every = sum(len(one.prompt_ids) + TOKENS - 1 for one in requests(ids)) + anew
    assert before + computed == every - shared
    assert not changed.snapshots


@pytest.mark.parametrize(
    ("change", "precision", "steps"),
    [
        (change, precision, steps)
        for i, change in enumerate(CHANGES)
        for j, (precision, steps) in enumerate([(Precision.Q4, 1), (None, 9), (Precision.Q4, 9), (None, 1)])
        if (i + j) % 2 == 0
    ],
)
def test_answers_continue_from_transferred_kv_pages(
    references: References, packs: Packs, tmp_path: Path, change: str, precision: Precision | None, steps: int
):
    reference = references("qwen3")
    pack = packs(reference, precision)
    assert_continued(reference.prompt_ids, pack, change, steps, tmp_path)


@pytest.mark.parametrize("precision", [Precision.Q4, None])
@pytest.mark.parametrize("steps", [9, 14])
def test_longrope_continues_before_and_after_all_is_computed_anew(
    references: References, packs: Packs, tmp_path: Path, precision: Precision | None, steps: int
):
    """The short request needs the long factors at its eleventh token."""
    reference = references("phi4-mini-long")
    pack = packs(reference, precision)
    assert_continued(reference.prompt_ids, pack, "a machine joins", steps, tmp_path, anew=16)


@pytest.mark.parametrize("steps", [1, 9])
@pytest.mark.fault("H13", "nor are they found after a planned change")
def test_transferred_kv_pages_stay_private_to_their_client(
    references: References, packs: Packs, tmp_path: Path, steps: int
):
    reference = references("qwen3")
    pack = packs(reference, Precision.Q4)
    changed = Change(pack, "a machine joins", tmp_path)
    one, two, three = requests(reference.prompt_ids)
    submitted = [replace(one, scope="a"), replace(two, scope="b"), replace(three, scope="a")]
    with changed.old() as cluster:
        told = play(cluster, submitted, steps)
        pages, why = cluster.save(changed.halt)
        before = cluster.computed
    assert not why
    later = [replace(submitted[0], id=scope, prompt_ids=(*one.prompt_ids, 5), scope=scope) for scope in "abc"]
    with changed.new(pages) as cluster:
        after = play(
            cluster,
            [replace(own, answer_ids=tuple(told[own.id])) for own in submitted if len(told[own.id]) < TOKENS],
        )
        assert before + cluster.computed == sum(len(own.prompt_ids) + TOKENS - 1 for own in submitted)
        read = []
        for own in later:
            computed = cluster.computed
            play(cluster, [own])
            read.append(cluster.computed - computed)
    assert {**told, **after} == undisturbed(reference.prompt_ids, pack)
    every = len(later[0].prompt_ids) + TOKENS - 1
    found = page_of(pack)
    assert read == [every - found, every - found, every]


def damage(change: Change, how: str) -> None:
    folder = change.folders[""] if how == "at the master" else change.folders["ann"]
    (path,) = folder.glob("*")
    data = path.read_bytes()
    match how:
        case "at the master":
            path.unlink()
        case "it ends too early":
            path.write_bytes(data[:-1])
        case "it was written with another key":
            path.write_bytes(data[:16][::-1] + data[16:])
        case "it cannot be read":
            path.unlink()
            path.mkdir()


@pytest.mark.parametrize(
    "how", ["at the master", "it ends too early", "it was written with another key", "it cannot be read"]
)
def test_damaged_kv_snapshots_are_recomputed(references: References, packs: Packs, tmp_path: Path, how: str):
    reference = references("qwen3")
    pack = packs(reference, Precision.Q4)
    change = Change(pack, "a machine joins", tmp_path)
    with change.old() as cluster:
        told = play(cluster, requests(reference.prompt_ids), 9)
        pages, why = cluster.save(change.halt)
        assert not why
    damage(change, how)
    submitted = going_on(reference.prompt_ids, told)
    with change.new(pages) as cluster:
        after = play(cluster, submitted)
        computed = cluster.computed
        assert cluster.leader.pages[0] == 0, "pages are held for nobody"
    assert {**told, **after} == undisturbed(reference.prompt_ids, pack)
    assert computed > LONG


def test_kv_snapshots_never_repeat_a_ciphertext(references: References, packs: Packs, tmp_path: Path):
    reference = references("qwen3")
    change = Change(packs(reference, None), "a machine joins", tmp_path)
    texts = []
    with change.old() as cluster:
        play(cluster, requests(reference.prompt_ids), 2)
        for _ in range(2):
            assert not cluster.save(change.halt)[1]
            texts.append([path.read_bytes() for path in change.snapshots])
    for first, second in zip(*texts, strict=True):
        assert len(first) == len(second) > PART
        # Most of a cache's bytes are zeros where nothing was written yet.
        assert first.count(0) < len(first) / PART_OF_ZEROS
        assert sum(a == b for a, b in zip(first, second, strict=True)) < len(first) / PART_OF_ZEROS


@pytest.mark.fault("W2", "what it says in place of whether it could is named")
def test_node_with_malformed_kv_transfer_reply_is_named(
    references: References, packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    agreed = kv_transfer.KVTransfer._agreed

    def lying(transfer: kv_transfer.KVTransfer, step: int, error: str) -> str:
        group = transfer._communicator
        if group.rank == 0:
            return agreed(transfer, step, error)
        group.send_up(torch.zeros(0, 4), group.rank, Tag(step, 0, 1))
        return "no"

    monkeypatch.setattr(kv_transfer.KVTransfer, "_agreed", lying)
    reference = references("qwen3")
    change = Change(packs(reference, Precision.Q4), "a machine joins", tmp_path)
    with change.old() as cluster:
        play(cluster, requests(reference.prompt_ids), 9)
        with pytest.raises(Misconduct) as raised:
            cluster.save(change.halt)
    assert raised.value.rank == 1
