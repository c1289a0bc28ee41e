from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpiedge.engine.batcher import Batch, Batcher
from tpiedge.engine.paging import Disk
from tpiedge.engine.sequence import RunningSequence, StepPiece
from tpiedge.engine.step_cost import StepCost
from tpiedge.kv.pages import NameKeys, PagePool
from tpiedge.model.blocks import Experts
from tpiedge.wire.data import Segment
from tpiedge.wire.fields import MAX_PAGES
from tpiedge.wire.requests import GenerationRequest

SIZE = 4
KEYS = NameKeys(b"key", b"key")

Model = Callable[[Sequence[int]], int]


def wandering(ids: Sequence[int]) -> int:
    return (7 * ids[-1] + 3 * len(ids) + sum(ids)) % 1009


def repeating(ids: Sequence[int]) -> int:
    return ids[-3]


def nearly_repeating(ids: Sequence[int]) -> int:
    return ids[-3] if len(ids) % 5 else ids[-3] + 1


def cost_of(*points: tuple[int, float]) -> StepCost:
    cost = StepCost()
    for rows, seconds in points:
        for _ in range(3):
            cost.measured(rows, seconds)
    return cost


class Node:
    """A KV cache as the test knows it: of every position of a page, which tokens led there, and whether the sequence
    was long."""

    def __init__(self, pages: int, size: int) -> None:
        self._size = size
        self._pages: list[list[object]] = [[None] * size for _ in range(pages)]
        self._tables: defaultdict[int, list[int]] = defaultdict(list)
        self._lengths: Counter[int] = Counter()

    def compute(self, batch: Batch) -> None:
        """Does what the plan says, and looks whether every position finds all positions before it."""
        for change in batch.tables:
            table = self._tables[change.slot]
            assert change.kept <= len(table)
            table[change.kept :] = change.pages
            assert change.filled <= len(table) * self._size
            self._lengths[change.slot] = change.filled
        for page in batch.discarded:
            self._pages[page] = [None] * self._size
        pieces = {piece.sequence.slot: piece for piece in batch.pieces}
        long = {segment.slot: segment.long for segment in batch.segments}
        texts = {slot: [*one.sequence.ids[: one.start], *one.ids] for slot, one in pieces.items()}
        for segment in batch.segments:
            self._write(segment, texts[segment.slot])
        for slot, piece in pieces.items():
            assert self._lengths[slot] == piece.stop
            for position in range(piece.stop):
                assert self._at(slot, position) == (long[slot], *texts[slot][: position + 1])

    def _write(self, segment: Segment, text: Sequence[int]) -> None:
        stop = segment.start + segment.length
        assert segment.start <= self._lengths[segment.slot], "a hole"
        assert stop <= len(self._tables[segment.slot]) * self._size, "no page"
        assert segment.wanted <= segment.length
        for position in range(segment.start, stop):
            page = self._tables[segment.slot][position // self._size]
            self._pages[page][position % self._size] = (segment.long, *text[: position + 1])
        self._lengths[segment.slot] = stop

    def _at(self, slot: int, position: int) -> object:
        return self._pages[self._tables[slot][position // self._size]][position % self._size]


class Engine:
    """A batcher whose steps are computed by a node and drawn by a model, as the runner does it."""

    def __init__(
        self,
        pages: int = 16,
        *,
        sequences: int = 4,
        step_tokens: int = 64,
        speculate: int = 0,
        grain: int = 0,
        size: int = SIZE,
        cost: StepCost | None = None,
        model: Model = wandering,
        short_tokens: int = 1 << 20,
        keys: NameKeys = KEYS,
        disk: Disk | None = None,
    ) -> None:
        self.pool = PagePool(pages, size, keys, grain)
        self.batcher = Batcher(self.pool, step_tokens, sequences, speculate, short_tokens, disk)
        self.short_tokens = short_tokens
        self.batcher.cost = self.cost = cost or self.batcher.cost
        self.node = Node(pages, size)
        self.model = model
        self.step_tokens, self.sequences = step_tokens, sequences
        self.ended: list[RunningSequence] = []
        self.count = 0

    def add(
        self, ids: Sequence[int], max_tokens: int = 4, *, keep: bool = True, scores: bool = False
    ) -> RunningSequence:
        self.count += 1
        name = f"r{self.count}"
        request = GenerationRequest(name, tuple(ids), max_tokens, keep_prefix=keep, prompt_scores=scores)
        return self.batcher.add(request)

    def plan(self) -> Batch:
        # Twice: see test_there_is_a_step_as_long_as_anybody_waits.
        batch = self.batcher.plan() or self.batcher.plan()
        assert batch is not None
        return batch

    def step(self) -> Batch:
        batch = self.plan()
        self.check(batch)
        self.node.compute(batch)
        for piece in batch.pieces:
            self.batcher.decided(piece, self.drawn(piece) if piece.draws else ())
        for sequence in self.batcher.sequences:
            if sequence.answer_tokens == sequence.request.max_tokens:
                self.end(sequence)
        self.check_pages()
        return batch

    def run(self, most: int = 500) -> list[Batch]:
        batches: list[Batch] = []
        while not self.batcher.idle:
            batches.append(self.step())
            assert len(batches) < most
        assert self.batcher.plan() is None
        return batches

    def end(self, sequence: RunningSequence) -> None:
        self.batcher.end(sequence)
        self.ended.append(sequence)

    @property
    def running(self) -> list[RunningSequence]:
        return [sequence for sequence in self.batcher.sequences if sequence.slot >= 0]

    def answer(self, sequence: RunningSequence) -> list[int]:
        ids = list(sequence.request.prompt_ids)
        for _ in range(sequence.request.max_tokens):
            ids.append(self.model(ids))
        return ids

    def drawn(self, piece: StepPiece) -> list[int]:
        sequence = piece.sequence
        left = sequence.request.max_tokens - sequence.answer_tokens
        tokens: list[int] = []
        for guessed in [*piece.ids[len(piece.ids) - piece.drafted :], None]:
            tokens.append(self.model([*sequence.ids, *tokens]))
            if tokens[-1] != guessed or len(tokens) == left:
                break
        return tokens

    def check(self, batch: Batch) -> None:
        decodes = [piece.sequence.decodes for piece in batch.pieces]
        assert decodes == sorted(decodes, reverse=True), "answers come first"
        assert batch.decode_tokens == sum(len(piece.ids) for piece in batch.pieces if piece.sequence.decodes)
        assert 0 < len(batch.ids) <= self.step_tokens
        assert len(batch.ids) == sum(segment.length for segment in batch.segments)
        slots = [piece.sequence.slot for piece in batch.pieces]
        assert len(set(slots)) == len(slots)
        assert [segment.slot for segment in batch.segments] == slots
        for piece, segment in zip(batch.pieces, batch.segments, strict=True):
            assert segment.long == (len(piece.sequence.ids) > self.short_tokens)
            assert segment.long or piece.stop <= self.short_tokens
            assert piece.start == piece.sequence.done
            assert not piece.drafted or piece.sequence.decodes
        held = {page for sequence in self.running for page in sequence.pages}
        assert not held & set(batch.discarded)

    def check_pages(self) -> None:
        running, size = self.running, self.pool.positions
        holders = Counter(page for sequence in running for page in sequence.pages)
        assert self.pool.held == len(holders)
        slots = {sequence.slot for sequence in running}
        assert len(slots) == len(running) <= self.sequences
        for sequence in running:
            assert len(set(sequence.pages)) == len(sequence.pages)
            assert sequence.done <= len(sequence.pages) * size
            assert len(sequence.names) * size <= sequence.done
            shared = [at for at, page in enumerate(sequence.pages) if holders[page] > 1]
            assert all(at < len(sequence.names) for at in shared)
        for sequence in self.batcher.sequences[len(running) :]:
            assert (sequence.slot, sequence.pages, sequence.done) == (-1, [], 0)


def test_sequence_that_becomes_long_is_computed_anew_and_shares_with_long_ones() -> None:
    engine = Engine(30, short_tokens=10)
    first = engine.add([*range(8)], 6)
    found = [
        (piece.start, len(piece.ids), segment.long)
        for batch in engine.run()
        for piece, segment in zip(batch.pieces, batch.segments, strict=True)
    ]
    assert found == [(0, 8, False), (8, 1, False), (9, 1, False), (0, 11, True), (11, 1, True), (12, 1, True)]
    assert (first.ids, first.steps) == (engine.answer(first), 6)
    long, short = engine.add([*first.ids[:11]], 1), engine.add([*first.ids[:9]], 1)
    engine.step()
    assert (long.cached, short.cached) == (8, 8)
    assert not set(long.pages) & set(short.pages)


def lengths(batch: Batch) -> list[int]:
    return [len(piece.ids) for piece in batch.pieces]


def sequences_of(batch: Batch) -> list[RunningSequence]:
    return [piece.sequence for piece in batch.pieces]


def test_sequences_start_in_arrival_order() -> None:
    engine = Engine(sequences=2)
    first, second, third = (engine.add([token] * 5, count) for token, count in ((1, 3), (2, 2), (3, 2)))
    assert engine.batcher.sequences == (first, second, third)
    engine.step()
    assert engine.running == [first, second]
    engine.run()
    assert engine.ended == [second, first, third]
    for sequence in engine.ended:
        assert sequence.ids == engine.answer(sequence)


def test_sequence_waiting_for_pages_is_not_overtaken() -> None:
    engine = Engine(4)
    first = engine.add([1] * 12, 2)
    second, third = engine.add([2] * 8, 2), engine.add([3], 2)
    engine.step()
    assert engine.running == [first]
    engine.step()
    assert engine.ended == [first]
    engine.step()
    assert engine.running == [second, third]
    engine.run()


def test_youngest_sequence_is_preempted_and_recomputed() -> None:
    engine = Engine(4)
    old, young = engine.add([1] * 7, 6), engine.add([2] * 7, 6)
    waiting = engine.add([3] * 3, 1)
    engine.step()
    engine.step()
    assert engine.running == [old, young]
    batch = engine.step()
    assert sequences_of(batch) == [old]
    assert engine.batcher.sequences == (old, young, waiting), "it waits in front of all others"
    assert young.answer_tokens == 2, "its answer stays"
    batches = engine.run()
    assert engine.ended == [old, waiting, young], "both fit again when the oldest has ended"
    assert young.cached == 0, "what was found when it ran again is no cached prompt"
    again = next(piece for batch in batches for piece in batch.pieces if piece.sequence is young)
    assert again.start == 4, "its first page was still there"
    for sequence in (old, young):
        assert sequence.ids == engine.answer(sequence)
        assert sequence.steps == 6


def test_sequence_waits_for_a_shared_prefix_and_others_pass() -> None:
    engine = Engine(step_tokens=8)
    first = engine.add([*range(8), 100], 3)
    second = engine.add([*range(8), 200], 3)
    third = engine.add([50], 3)
    engine.step()
    assert engine.running == [first, third]
    assert engine.batcher.sequences == (first, third, second)
    while second.slot < 0:
        engine.step()
    assert second.pages[:2] == first.pages[:2]
    assert second.cached == 8
    engine.run()
    assert (first.cached, third.cached) == (0, 0)
    assert second.ids == engine.answer(second)


@pytest.mark.parametrize("scores", [False, True])
def test_request_without_prefix_caching_shares_no_pages(scores: bool) -> None:
    engine = Engine()
    for _ in range(2):
        one = engine.add([*range(9)], 1, keep=scores, scores=scores)
        batch = engine.step()
        assert lengths(batch) == [9]
        assert batch.segments[0].wanted == (9 if scores else 1)
        assert one.cached == 0
    assert engine.pool.find(engine.pool.names([*range(8)], engine.pool.scope_name(""))) == []


def test_answers_and_prompts_share_a_step() -> None:
    engine = Engine(64, cost=cost_of((1, 1.0), (32, 4.0), (64, 8.0)))
    first = engine.add([1, 2, 3], 9)
    alone = engine.step()
    assert (alone.lone, alone.decode_tokens) == ("r1", 0)
    second = engine.add([*range(100, 200)], 2)
    batch = engine.step()
    assert sequences_of(batch) == [first, second]
    assert (lengths(batch), batch.decode_tokens, batch.lone) == ([1, 37], 1, "")
    assert batch.segments[1] == Segment(1, 0, 37, 1)


@pytest.mark.parametrize(("experts", "tokens"), [(None, 16), (Experts(32, 4, 64), 23)])
def test_prompt_beside_an_answer_takes_few_tokens_but_as_many_as_read_nearly_all_experts(
    experts: Experts | None, tokens: int
) -> None:
    cost = StepCost(experts.touched) if experts else StepCost()
    engine = Engine(64, cost=cost)
    engine.add([1, 2, 3], 9)
    engine.step()
    cost.measured(1, 1.0)
    engine.add([*range(100, 200)], 2)
    assert lengths(engine.step()) == [1, tokens]


def test_shortest_prefill_goes_first_and_oldest_keeps_a_share() -> None:
    engine = Engine(300, step_tokens=64)
    oldest, short, shorter = engine.add([1] * 300, 2), engine.add([2] * 40, 2), engine.add([3] * 20, 2)
    batch = engine.step()
    assert sequences_of(batch) == [shorter, short, oldest]
    assert lengths(batch) == [20, 28, 16]


def test_pages_of_a_step_plan_fit_in_one_message() -> None:
    engine = Engine(3000, sequences=16, step_tokens=512, size=1, cost=cost_of((1, 1.0), (2, 9.0)))
    text = [*range(1000)]
    engine.add(text, 1)
    engine.run()
    busy = engine.add([5000], 100)
    engine.step()
    for i in range(12):
        engine.add([*text, *range(10000 + 40 * i, 10030 + 40 * i)], 1)
    for _ in range(8):
        assert pages_named(engine.step()) <= MAX_PAGES
    engine.end(busy)
    while not engine.batcher.idle:
        assert pages_named(engine.step()) <= MAX_PAGES


def pages_named(batch: Batch) -> int:
    return len(batch.discarded) + sum(len(change.pages) for change in batch.tables)


def test_unused_kv_memory_is_released() -> None:
    engine = Engine(32, grain=2)
    engine.add([1] * 100, 1)
    for batch in engine.run():
        assert batch.discarded == ()
    assert engine.pool.in_memory == 25
    one = engine.add([2] * 5, 3)
    batch = engine.step()
    assert engine.pool.in_memory == 2
    assert len(batch.discarded) == 25, "cold pages are taken before idle ones"
    assert not set(batch.discarded) & set(one.pages)
    assert engine.step().discarded == ()


def flat() -> StepCost:
    return cost_of(*((rows, 1.0) for rows in (1, 2, 4, 8, 16, 32, 64)))


def test_accepted_drafts_are_decoded_in_one_step() -> None:
    engine = Engine(speculate=5, cost=flat(), model=repeating)
    one = engine.add([1, 2, 3] * 4, 40)
    engine.step()
    batch = engine.step()
    (piece,) = batch.pieces
    assert 0 < piece.drafted <= 5
    assert batch.decode_tokens == len(piece.ids) == piece.drafted + 1 == piece.wanted
    assert piece.ids == one.ids[12 : 13 + piece.drafted]
    assert (one.done, len(one.ids)) == (piece.stop, piece.stop + 1)
    engine.run()
    assert one.ids == engine.answer(one)
    assert one.steps < 20


MODELS = [wandering, repeating, nearly_repeating]


def rising() -> StepCost:
    return cost_of((1, 1.0), (16, 2.0))


def mixed() -> StepCost:
    return StepCost(Experts(32, 4, 64).touched)


COSTS: list[Callable[[], StepCost]] = [StepCost, flat, rising, mixed]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_random_schedules_give_every_sequence_its_answer(data: st.DataObject) -> None:
    draw = data.draw
    pages = draw(st.integers(4, 14), "pages")
    engine = Engine(
        pages,
        sequences=draw(st.integers(1, 4), "sequences"),
        step_tokens=draw(st.integers(4, 40), "step_tokens"),
        speculate=draw(st.sampled_from([0, 0, 3, 15]), "speculate"),
        grain=draw(st.sampled_from([0, 1, 3]), "grain"),
        cost=draw(st.sampled_from(COSTS), "cost")(),
        model=draw(st.sampled_from(MODELS), "model"),
        short_tokens=draw(st.sampled_from([1000, 5, 12, 13, 22]), "short_tokens"),
    )
    sequences: list[RunningSequence] = []
    stopped: list[RunningSequence] = []
    for _ in range(draw(st.integers(1, 12), "moves")):
        for _ in range(draw(st.integers(0, 3), "come")):
            # Of three tokens at least, for the models; long texts begin alike.
            ids = draw(
                st.sampled_from([[1, 2, 3] * 4, [1, 2, 3, 9], [4, 5, 6] * 3, [1, 2, 3] * 3 + [7]]), "text"
            )
            ids = ids[: draw(st.integers(3, 12), "length")]
            answer = draw(st.integers(1, pages * SIZE - len(ids)), "answer")
            keep = draw(st.booleans(), "keep")
            sequences.append(
                engine.add(ids, answer, keep=keep, scores=draw(st.sampled_from([False] * 3 + [True])))
            )
        for _ in range(draw(st.integers(0, 4), "steps")):
            if not engine.batcher.idle:
                engine.step()
        alive = engine.batcher.sequences
        if alive and draw(st.integers(0, 4), "end") == 0:
            stopped.append(alive[draw(st.integers(0, len(alive) - 1), "whom")])
            engine.end(stopped[-1])
            engine.check_pages()
    engine.run(5000)
    assert engine.pool.held == 0
    assert sorted(map(id, engine.ended)) == sorted(map(id, sequences))
    for sequence in sequences:
        assert sequence in stopped or sequence.ids == engine.answer(sequence)
