"""Pages go to disk and come back: in another cluster with another split, after a restart, and where memory is short.
The same tokens come, and next to nothing is computed anew."""

import itertools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.cluster.packs import Packs, References, split, split_of
from tests.cluster.test_batching import (
    SCHEDULES,
    Arrival,
    Run,
    Told,
    alike,
    ask,
    greedy,
    page_of,
    requests_of,
)
from tests.fakes.cluster import InProcessCluster, SoloLeader
from tests.reference import Reference
from tpiedge.collectives.communicator import Tag
from tpiedge.engine import batcher, paging
from tpiedge.engine.page_moves import PageMoves
from tpiedge.errors import Misconduct
from tpiedge.kernels.kv_format import KVFormat, page_positions
from tpiedge.model.config import ModelConfig
from tpiedge.model.spec import config_of_pack
from tpiedge.pack.reader import Pack
from tpiedge.pack.share import NodeShare, kv_share
from tpiedge.pack.specs import Precision
from tpiedge.planner.kv_transfer import KVHolder, KVMoves, plan_moves
from tpiedge.wire.control import Finished, Halt, KVSnapshot, PageKeys, Token
from tpiedge.wire.data import PageOrders
from tpiedge.wire.fields import NAME_BYTES
from tpiedge.wire.requests import GenerationRequest, Sampling

TOKENS = 24
WAIT_S = 20.0
THREADS = 4  # of a disk's queue
CAPACITY = 512
#: More than a page.
LONG = 140
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


def keys(names: str = "own", *, keep: bool = False, park: bool = False) -> PageKeys:
    """`names`: a split whose bits differ from those of others."""
    seal = bytes(32)
    return PageKeys(names.encode(), b"own", seal, seal, keep, park)


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

    leader = cluster.leader
    for one in submitted:
        leader.submit(one, append)
    finished: list[Finished] = []
    while (leader.preparing or not leader.idle) and (steps is None or steps > 0):
        if leader.idle:
            leader.await_grammar(WAIT_S)
        finished += leader.step()
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

    def new(self, names: bytes, capacity: int = CAPACITY) -> InProcessCluster:
        snapshot = KVSnapshot(names, self.moves.scattered)
        return self._cluster(capacity, self._after, self._machines_after, snapshot)

    @property
    def halt(self) -> Halt:
        return Halt(1, 2, self.moves.gathered)

    @property
    def files(self) -> list[Path]:
        return [path for folder in self.folders.values() for path in folder.glob("*/*")]

    def _cluster(
        self, capacity: int, shares: Sequence[NodeShare], machines: Sequence[str], snapshot: KVSnapshot | None
    ) -> InProcessCluster:
        return InProcessCluster(
            self._pack,
            shares,
            capacity_tokens=capacity,
            sequences=3,
            folders=[self.folders[name] for name in machines],
            pages=keys(",".join(machines) if self.private else "own"),
            snapshot=snapshot,
        )


def page_of_pack(pack: Path) -> int:
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
        halted = cluster.leader.halt(changed.halt)
        before = cluster.computed
    assert halted.names
    assert not halted.why
    with changed.new(halted.names) as cluster:
        after = play(cluster, going_on(ids, told))
        computed = cluster.computed
    assert {**told, **after} == undisturbed(ids, pack)
    # In f32 keys and values show who computed them, so that only their own request has them in another cluster.
    shared = 0 if changed.private and steps == 1 else page_of_pack(pack)
    every = sum(len(one.prompt_ids) + TOKENS - 1 for one in requests(ids)) + anew
    assert before + computed == every - shared


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
        names = cluster.leader.halt(changed.halt).names
        before = cluster.computed
    later = [replace(submitted[0], id=scope, prompt_ids=(*one.prompt_ids, 5), scope=scope) for scope in "abc"]
    with changed.new(names) as cluster:
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
    assert read[2] == every
    assert max(read[:2]) <= every - page_of_pack(pack)


def damage(change: Change, how: str) -> None:
    folder = change.folders["" if how == "at the master" else "ann"]
    for path in folder.glob("*/*"):
        data = path.read_bytes()
        match how:
            case "at the master":
                path.unlink()
            case "it ends too early":
                path.write_bytes(data[:-4096])
            case "a bit is another one":
                path.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
            case "it cannot be read":
                path.unlink()
                path.mkdir()


@pytest.mark.parametrize(
    "how", ["at the master", "it ends too early", "a bit is another one", "it cannot be read"]
)
def test_damaged_pages_are_recomputed(references: References, packs: Packs, tmp_path: Path, how: str) -> None:
    reference = references("qwen3")
    pack = packs(reference, Precision.Q4)
    change = Change(pack, "a machine joins", tmp_path)
    with change.old() as cluster:
        told = play(cluster, requests(reference.prompt_ids), 9)
        names = cluster.leader.halt(change.halt).names
    damage(change, how)
    submitted = going_on(reference.prompt_ids, told)
    with change.new(names) as cluster:
        after = play(cluster, submitted)
        computed = cluster.computed
        assert cluster.leader.pages[0] == 0, "pages are held for nobody"
    assert {**told, **after} == undisturbed(reference.prompt_ids, pack)
    assert computed > LONG


def test_halted_cluster_goes_on_if_no_change_comes(
    references: References, packs: Packs, tmp_path: Path
) -> None:
    reference = references("qwen3")
    pack = packs(reference, Precision.Q4)
    change = Change(pack, "a machine joins", tmp_path)
    with change.old() as cluster:
        told = play(cluster, requests(reference.prompt_ids), 9)
        before = cluster.computed
        assert cluster.leader.halt(change.halt).names
        cluster.leader.resume()
        assert change.files
        rest = play(cluster, ())
        cluster.leader._usual_at = 0.0  # as long afterwards
        cluster.leader.step()
        every = sum(len(one.prompt_ids) + TOKENS - 1 for one in requests(reference.prompt_ids))
        assert cluster.computed == every - page_of_pack(pack)
        assert 0 < before < cluster.computed
    assert rest == {}
    assert not change.files, "pages of a change of plan stay on disk"
    assert told == undisturbed(reference.prompt_ids, pack)


def test_halt_leaves_more_pages_than_one_message_orders(
    short: "Short", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "MAX_ARRAY", 2)
    monkeypatch.setattr(paging, "_LEFT_PAGES", 1)
    submitted = clients(short.page, 4)
    with short.cluster("2,1", pages=12) as cluster:
        play(cluster, submitted, steps=6)
        halted = cluster.leader.halt(Halt(1, 2, ()))
        assert len(halted.names) // NAME_BYTES > 2 * 2
        assert len([*short.folder.glob("0/parked/*")]) == len(halted.names) // NAME_BYTES
        assert cluster.leader.pages[0] == 0, "pages wait for orders that were not given"


def clients(page: int, count: int) -> list[GenerationRequest]:
    """Requests with a shared page and an own one. Their answers need a page more each."""
    shared = prompt(page)
    return [
        replace(ask(number, (*shared, number + 5, *prompt(page - 10)), 30), keep_context=True)
        for number in range(count)
    ]


def prompt(length: int) -> tuple[int, ...]:
    return tuple(3 + i * i % 50 for i in range(length))


class Short:
    """A cluster of few pages and its folders, which outlive it."""

    def __init__(self, reference: Reference, packs: Packs, folder: Path, precision: Precision) -> None:
        self.pack = packs(reference, precision)
        self.page = page_of(reference, "f32" if precision is Precision.F32 else "bf16")
        self.reference, self.folder = reference, folder
        self.split_shows = precision is Precision.F32

    def cluster(
        self,
        shares: str,
        *,
        pages: int = 7,
        keep: bool = False,
        park: bool = False,
        snapshot: KVSnapshot | None = None,
    ) -> InProcessCluster:
        return InProcessCluster(
            self.pack,
            split(self.reference, shares),
            capacity_tokens=pages * self.page,
            context_tokens=5 * self.page,
            sequences=4,
            folders=[self.folder / str(rank) for rank in range(shares.count(",") + 1)],
            pages=keys(shares if self.split_shows else "own", keep=keep, park=park),
            snapshot=snapshot,
        )

    def undisturbed(self, submitted: Sequence[GenerationRequest]) -> dict[str, list[int]]:
        with InProcessCluster(
            self.pack, split(self.reference, "1"), capacity_tokens=4 * self.page
        ) as cluster:
            return {one.id: play(cluster, [one])[one.id] for one in submitted}


@pytest.fixture(params=[Precision.Q4, Precision.F32], ids=str)
def short(request: pytest.FixtureRequest, references: References, packs: Packs, tmp_path: Path) -> Short:
    return Short(references("qwen3"), packs, tmp_path, request.param)


def brought(cluster: InProcessCluster) -> list[int]:
    return [disk.queue.used("bring").jobs for disk in cluster.disks]


@pytest.mark.parametrize("shares", ["1", "2,1", "1:0,0:1,2", "1,1,1,1"])
def test_preempted_sequences_bring_their_pages(short: Short, shares: str) -> None:
    submitted = clients(short.page, 4)
    computed = []
    for park in (False, True):
        with short.cluster(shares, park=park) as cluster:
            told = play(cluster, submitted)
            computed.append(cluster.computed)
            assert any(brought(cluster)) == park
            settle(cluster)
            assert cluster.leader.pages[0] == 0, "pages are held by nobody"
        assert told == short.undisturbed(submitted)
    assert computed[1] < computed[0]


@pytest.mark.parametrize("shares", ["1", "2,1", "1,1,1,1"])
def test_kept_prefix_survives_a_restart(short: Short, shares: str) -> None:
    texts = [(number + 5, *prompt(2 * short.page + 9)) for number in range(3)]
    submitted = [replace(ask(number, text, 9), keep_context=True) for number, text in enumerate(texts)]
    with short.cluster(shares, pages=12, keep=True) as cluster:
        play(cluster, submitted)
        settle(cluster)
    with short.cluster(shares, pages=12, keep=True) as cluster:
        told = play(cluster, submitted)
        assert cluster.computed == 3 * (10 + 8)
        assert brought(cluster) == [3 * 2] * len(cluster.disks)
    assert told == short.undisturbed(submitted)


@pytest.mark.parametrize("late", [False, True])
def test_sequence_waits_for_the_slowest_disk_unless_it_is_late(
    short: Short, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    monkeypatch.setattr(batcher, "LATE_S", 0.0 if late else math.inf)
    slow = replace(ask(0, (5, *prompt(2 * short.page)), 9), keep_context=True)
    other = ask(1, prompt(7), 9)
    with short.cluster("2,1", pages=12, keep=True) as cluster:
        play(cluster, [slow])
        settle(cluster)
    gate = threading.Event()
    with short.cluster("2,1", pages=12, keep=True) as cluster:
        queue = cluster.disks[1].queue
        jobs = [queue.submit("weights", 1, lambda: gate.wait(WAIT_S) + 0) for _ in range(THREADS)]
        try:
            told = play(cluster, [slow, other], steps=None if late else 40)
            assert [len(told[name]) for name in ("r0", "r1")] == [9 if late else 0, 9]
            assert not any(job.done() for job in jobs)
        finally:
            gate.set()
        play(cluster, ())
        settle(cluster)
        assert all(brought(cluster))
        assert cluster.leader.pages[0] == 0
    assert told == short.undisturbed([slow, other])


def test_end_of_a_preamble_is_brought_for_another_chat(short: Short) -> None:
    shared = prompt(short.page + 10)
    chats = [
        replace(ask(number, (*shared, number + 5, *prompt(short.page)), 9), keep_context=True)
        for number in range(2)
    ]
    one, other = [replace(chat, preamble_tokens=len(shared)) for chat in chats]
    with short.cluster("2,1", pages=12, keep=True) as cluster:
        play(cluster, [one])
        settle(cluster)
    with short.cluster("2,1", pages=12, keep=True) as cluster:
        told = play(cluster, [other])
        assert cluster.computed == 1 + short.page + 8
    assert told == short.undisturbed([other])


@pytest.mark.parametrize("park", [False, True])
def test_only_a_halt_gives_parked_pages_more_space(short: Short, park: bool) -> None:
    with short.cluster("2,1", pages=12, park=park) as cluster:
        play(cluster, clients(short.page, 4), steps=6)
        assert [one.parked.limit_bytes for one in cluster.disks] == [one.usual_bytes for one in cluster.disks]
        names = cluster.leader.halt(Halt(1, 2, ())).names
    with short.cluster("2,1", pages=12, park=park, snapshot=KVSnapshot(names, ())) as cluster:
        play(cluster, [ask(8, prompt(3), 2)])
        assert [one.parked.limit_bytes for one in cluster.disks] == [one.halt_bytes for one in cluster.disks]
        assert all(disk.parked.count for disk in cluster.disks)
        cluster.leader._usual_at = 0.0  # ten seconds later
        play(cluster, [ask(9, prompt(3), 2)])
        assert [one.parked.limit_bytes for one in cluster.disks] == [one.usual_bytes for one in cluster.disks]
        assert all(disk.parked.count > 0 for disk in cluster.disks) == park


def test_requests_without_consent_are_not_kept(short: Short) -> None:
    with short.cluster("2,1", keep=True) as cluster:
        play(cluster, [replace(one, keep_context=False) for one in clients(short.page, 2)])
        settle(cluster)
    assert not list(short.folder.rglob("kept/*"))


def settle(cluster: InProcessCluster) -> None:
    """Steps until all pages that are to be left are on disk."""
    leader = cluster.leader
    leader.step()
    while leader._batcher.outstanding or not leader.idle:
        leader._moves.wait(WAIT_S)
        leader._asked_at = 0.0
        leader.step()
        leader.step()


def fail_read(folder: Path) -> None:
    for path in folder.rglob("*-*"):
        path.unlink()


def flip_bits(folder: Path) -> None:
    for path in folder.rglob("*-*"):
        if data := bytearray(path.read_bytes()):
            data[len(data) // 3] ^= 4
            path.write_bytes(data)


@pytest.mark.parametrize("spoil", [fail_read, flip_bits])
@pytest.mark.parametrize("rank", [0, 1])
def test_page_that_one_node_lacks_is_computed(short: Short, spoil: Callable[[Path], None], rank: int) -> None:
    submitted = clients(short.page, 3)
    with short.cluster("2,1", keep=True) as cluster:
        play(cluster, submitted)
        settle(cluster)
    with short.cluster("2,1", keep=True) as cluster:
        spoil(short.folder / str(rank))  # once the index is read
        told = play(cluster, submitted)
        settle(cluster)  # what was computed is left again
        assert cluster.leader.pages[0] == 0
    assert told == short.undisturbed(submitted)


@pytest.mark.parametrize("rank", [0, 1])
def test_full_disk_of_one_node_costs_only_time(short: Short, rank: int) -> None:
    submitted = clients(short.page, 4)
    with short.cluster("2,1", park=True) as cluster:
        cluster.disks[rank].parked.limit_bytes = 0
        told = play(cluster, submitted)
        assert len(cluster.warnings) == 1
        settle(cluster)
        assert cluster.leader.pages[0] == 0
    assert told == short.undisturbed(submitted)


@pytest.mark.fault("W2", "what it says in place of how far its pages are is named")
def test_node_with_impossible_answers_about_pages_is_named(
    short: Short, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = PageMoves._answers

    def lying(moves: PageMoves, message: PageOrders) -> object:
        group = moves._communicator
        if group.rank == 0 or not message.asked:
            return answers(moves, message)
        wrong = torch.full((1, 2 * len(message.asked)), -2.0)
        return group.send_up(wrong, group.rank, Tag(message.step, 0, 0))

    monkeypatch.setattr(PageMoves, "_answers", lying)
    with short.cluster("2,1", keep=True) as cluster:
        cluster.leader.submit(clients(short.page, 1)[0], lambda _: None)
        with pytest.raises(Misconduct) as raised:
            settle(cluster)
    assert raised.value.rank == 1


@dataclass(frozen=True)
class Stage:
    """An epoch of `steps` steps, how it ends, and the node whose files are spoilt then, if any."""

    shares: str
    steps: int
    end: Literal["halt", "loss"]
    spoil: int | None


class Life:
    """Requests from epoch to epoch, and what they were told."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self.told: dict[str, list[Told]] = {one.request.id: [] for one in arrivals}
        self._coming = sorted(arrivals, key=lambda one: one.step)
        self._open: dict[str, Arrival] = {}
        self._step = 0

    def run(self, leader: SoloLeader, steps: float = math.inf) -> None:
        for one in self._open.values():
            known = tuple(token for token, _ in self.told[one.request.id])
            leader.submit(replace(one.request, answer_ids=known), partial(self._take, leader))
        last = self._step + steps
        while self._step < last and (self._coming or self._open):
            while self._coming and self._coming[0].step <= self._step:
                one = self._coming.pop(0)
                self._open[one.request.id] = one
                leader.submit(one.request, partial(self._take, leader))
            if leader.idle and self._open:
                leader.await_grammar(WAIT_S)
            for ended in leader.step():
                assert isinstance(ended, Finished)
                del self._open[ended.request]
            self._step += 1

    def _take(self, leader: SoloLeader, event: object) -> None:
        assert isinstance(event, Token)
        told = self.told[event.request]
        assert event.index == len(told), "a token is lost, or came twice"
        told.append((event.token, event.logprobs))
        if len(told) == self._open[event.request].leaves:
            leader.cancel(event.request)


@pytest.mark.parametrize(
    ("name", "precision"), [("llama-gqa-odd", Precision.Q4), ("qwen3", Precision.Q8), ("yi", Precision.F32)]
)
def test_answers_outlive_epochs_and_spoilt_disks(
    name: str, precision: Precision, references: References, packs: Packs, tmp_path: Path
) -> None:
    short = Short(references(name), packs, tmp_path, precision)
    config = config_of_pack(Pack.open(short.pack))
    stages = st.lists(
        st.builds(
            Stage,
            shares=st.sampled_from(["1", "2,1", "1,1,1", "1:0,0:1,2", "1,1,1,1"]),
            steps=st.integers(1, 15),
            end=st.sampled_from(["halt", "loss"]),
            spoil=st.sampled_from([None, None, 0, 1]),
        ),
        min_size=2,
        max_size=4,
    )
    lives = itertools.count()

    @settings(
        max_examples=int(SCHEDULES or 6),
        phases=[Phase.generate],
        deadline=None,
        derandomize=SCHEDULES is None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(requests_of(short.page), stages)
    def check(arrivals: list[Arrival], epochs: list[Stage]) -> None:
        arrivals = [
            replace(
                one,
                known=0,
                request=replace(one.request, keep_context=number % 3 > 0, keep_prefix=number % 4 > 0),
            )
            for number, one in enumerate(arrivals)
        ]
        if precision is Precision.F32:
            arrivals = [greedy(one) for one in arrivals]
        short.folder = tmp_path / str(next(lives))
        life, snapshot = Life(arrivals), None
        for stage, following in itertools.pairwise([*epochs, epochs[0]]):
            moves = plan_moves(*(holders(config, one.shares) for one in (stage, following)))
            with short.cluster(stage.shares, pages=6, keep=True, park=True, snapshot=snapshot) as cluster:
                life.run(cluster.leader, stage.steps)
                snapshot = None
                if stage.end == "halt":
                    names = cluster.leader.halt(Halt(1, 2, moves.gathered)).names
                    snapshot = KVSnapshot(names, moves.scattered)
            if stage.spoil is not None:
                flip_bits(short.folder / str(stage.spoil))
        with short.cluster(epochs[0].shares, pages=6, keep=True, park=True, snapshot=snapshot) as cluster:
            life.run(cluster.leader)
            settle(cluster)
            assert cluster.leader.pages[0] == 0, "pages are held by nobody"
        for one in arrivals:
            told = life.told[one.request.id]
            alone = Run(single.leader, [replace(one, step=0, leaves=0)]).told(one.request.id)
            assert alike(told, alone, precision)
            assert len(told) in (len(alone), one.leaves)

    with InProcessCluster(short.pack, split(short.reference, "1"), capacity_tokens=6 * short.page) as single:
        check()


def holders(config: ModelConfig, shares: str) -> list[KVHolder]:
    parts = enumerate(split_of(config, shares))
    return [
        KVHolder(str(rank or ""), kv_share(share.along("attention"), config.group_size))
        for rank, share in parts
    ]
