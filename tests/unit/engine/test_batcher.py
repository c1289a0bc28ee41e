"""The batcher as a machine: requests in, steps out, and every page and slot accounted for."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpiedge.engine.batcher import Batch, Batcher, BatchLimits
from tpiedge.engine.sequence import RunningSequence
from tpiedge.engine.step_cost import StepCost
from tpiedge.kv.pages import PagePool, root_name
from tpiedge.wire.data import Segment
from tpiedge.wire.requests import GenerationRequest

PAGE = 4


class World:
    """A batcher whose answers continue 1, 2, 3, ... from the prompt's last token on, and what its steps were."""

    def __init__(
        self,
        pages: int = 8,
        sequences: int = 3,
        speculate: int = 0,
        step_tokens: int = 16,
        *,
        turning: bool = False,
    ) -> None:
        self.pool = PagePool(pages, PAGE, b"key", root_name(b""))
        self.cost = StepCost()
        limits = BatchLimits(step_tokens, sequences, speculate)
        self.batcher = Batcher(self.pool, limits, self.cost, turning=turning)
        self.ended: list[str] = []

    def ask(self, name: str, prompt: Sequence[int], count: int = 3, scope: str = "") -> RunningSequence:
        request = GenerationRequest(name, tuple(prompt), count, keep_prefix=True, scope=scope)
        return self.batcher.add(request)

    def step(self) -> Batch | None:
        batch = self.batcher.plan()
        for piece in batch.pieces if batch else ():
            self.decide(piece.sequence, batch, piece)
        self.check()
        return batch

    def decide(self, sequence: RunningSequence, _batch: object, piece: object) -> None:
        drawn: list[int] = []
        if piece.draws:  # type: ignore[attr-defined]
            text = list(sequence.ids)
            guesses = list(piece.ids[len(piece.ids) - piece.drafted :])  # type: ignore[attr-defined]
            for guess in (*guesses, None):
                drawn.append(text[-1] % 9 + 1)
                text.append(drawn[-1])
                if drawn[-1] != guess or sequence.answer_tokens + len(drawn) >= sequence.request.max_tokens:
                    break
        self.batcher.decided(piece, drawn)  # type: ignore[arg-type]
        if drawn and sequence.answer_tokens >= sequence.request.max_tokens:
            self.batcher.end(sequence)
            self.ended.append(sequence.request.id)

    def check(self) -> None:
        running = [one for one in self.batcher.sequences if one.slot >= 0]
        carried = [one.carried for one in self.batcher.sequences if one.carried is not None]
        assert self.pool.held == len({page for one in (*running, *carried) for page in one.pages})
        assert len({one.slot for one in running}) == len(running)
        assert all(one.done <= len(one.pages) * PAGE for one in running)
        assert all(not one.pages for one in self.batcher.sequences if one.slot < 0)

    def run(self, most: int = 400) -> None:
        while not self.batcher.idle and most:
            self.step()
            most -= 1
        assert self.batcher.idle, "a sequence starves"
        assert self.pool.held == 0


def shape(batch: Batch | None) -> list[tuple[str, int, int]]:
    """(request, start, tokens) of every piece."""
    assert batch is not None
    return [(piece.sequence.request.id, piece.start, len(piece.ids)) for piece in batch.pieces]


def test_answers_and_prompts_share_a_step() -> None:
    world = World()
    world.ask("a", [1, 2, 3])
    assert shape(world.step()) == [("a", 0, 3)]
    world.ask("b", [5] * 6)
    assert shape(world.step()) == [("a", 3, 1), ("b", 0, 6)]
    batch = world.step()
    assert shape(batch) == [("a", 4, 1), ("b", 6, 1)]
    assert batch is not None
    assert batch.decode_tokens == 2
    world.run()
    assert world.ended == ["a", "b"]


def test_a_long_prompt_leaves_room_for_a_short_one_and_comes_to_its_end() -> None:
    world = World(pages=40, step_tokens=8)
    world.ask("long", [1] * 60)
    world.ask("short", [2] * 5)
    assert shape(world.step()) == [("short", 0, 5), ("long", 0, 3)]
    world.run()
    assert world.ended == ["short", "long"]


def test_prompts_make_a_step_not_quite_five_times_as_long_at_most() -> None:
    world = World(pages=400, step_tokens=400)
    for rows, seconds in ((1, 0.01), (2, 0.01), (16, 0.02), (32, 0.04), (64, 0.08), (256, 0.4)):
        for _ in range(3):
            world.cost.measured(rows, seconds)
    world.ask("a", [1, 2, 3], 50)
    world.step()
    world.ask("long", [1] * 300)
    batch = world.step()
    assert batch is not None
    assert 32 < len(batch.ids) < 40
    assert (world.cost.seconds(len(batch.ids)) or 0) <= 0.048


def test_a_prompt_alone_leaves_others_a_second_or_is_computed_beside_a_sweep() -> None:
    """Where weights stream, a step of one row takes as long as one of hundreds: no prompt is cut into many of them."""
    for least_s, tokens in ((0.01, 256), (1.5, 400)):
        world = World(pages=400, step_tokens=400)
        for rows, seconds in ((1, least_s), (64, least_s + 0.1), (256, least_s + 0.99), (400, least_s + 1.4)):
            for _ in range(3):
                world.cost.measured(rows, seconds)
        world.ask("long", [1] * 900)
        assert shape(world.step()) == [("long", 0, tokens)]


def test_a_sequence_begins_when_there_are_pages_for_all_its_tokens() -> None:
    world = World(pages=4)
    world.ask("a", [1] * 10, 2)
    world.ask("b", [2] * 8, 2)
    assert shape(world.step()) == [("a", 0, 10)]
    assert shape(world.step()) == [("a", 10, 1)]
    assert shape(world.step()) == [("b", 0, 8)]
    world.run()


def test_the_youngest_gives_up_its_pages_and_is_computed_anew() -> None:
    world = World(pages=5)
    old = world.ask("old", [1, 2, 3, 4, 5, 6, 7], 12)
    young = world.ask("young", [9, 8, 7, 6, 5, 4, 3], 12)
    seen = 0
    while not world.batcher.idle:
        world.step()
        seen += young.slot < 0 < young.answer_tokens and old.slot >= 0
    assert seen, "room was enough for both"
    assert world.ended == ["old", "young"]
    assert old.ids[7:] == [8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1]
    assert young.ids[7:] == [4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6]


def test_a_beginning_that_is_under_way_is_waited_for_and_shared() -> None:
    world = World(pages=20, step_tokens=4)
    text = list(range(1, 10))
    first = world.ask("first", text)
    second = world.ask("second", [*text, 1])
    other = world.ask("other", [3, 3])
    assert {name for name, _, _ in shape(world.step())} == {"first", "other"}
    while second.slot < 0:
        world.step()
    assert second.cached == 8
    assert second.pages[:2] == first.pages[:2]
    world.run()
    again = world.ask("again", text)
    world.step()
    assert again.cached == 8
    assert other.cached == 0


def test_another_client_finds_nothing_and_waits_for_nothing() -> None:
    world = World(pages=30, step_tokens=12)
    text = list(range(1, 10))
    mine, others = world.ask("mine", text, scope="a"), world.ask("other's", text, scope="b")
    world.step()
    assert others.slot >= 0, "it does not wait for pages that it will not find"
    world.run()
    assert mine.cached == others.cached == 0
    again = [world.ask(scope, text, scope=scope) for scope in ("a", "b", "c", "")]
    world.step()
    assert [one.cached for one in again] == [8, 8, 0, 0]
    assert not set(again[0].pages) & set(again[1].pages)
    world.run()


def test_what_is_not_to_be_kept_is_not_found() -> None:
    world = World()
    world.batcher.add(GenerationRequest("a", (1, 2, 3, 4, 5), 2))
    world.run()
    later = world.ask("b", [1, 2, 3, 4, 5])
    world.step()
    assert later.cached == 0


def test_guesses_that_come_true_are_done_and_others_are_not() -> None:
    world = World(pages=30, speculate=4, step_tokens=32)
    for rows in (1, 2, 4, 8):
        for _ in range(3):
            world.cost.measured(rows, 0.01)
    copied = world.ask("copy", [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4], 30)
    steps = 0
    while not world.batcher.idle:
        world.step()
        steps += 1
    assert copied.ids[13:22] == [5, 6, 7, 8, 9, 1, 2, 3, 4]
    assert copied.answer_tokens == 30
    assert copied.steps == steps < 15


def test_a_length_that_shows_in_every_key_is_replayed_position_by_position() -> None:
    world = World(pages=3, turning=True)
    sequence = world.ask("a", [1, 2, 3, 4, 5], 4)
    for _ in range(3):
        world.step()
    world.batcher._give_up(sequence)
    batch = world.step()
    assert batch is not None
    assert batch.segments == (
        Segment(0, 0, 5, 5, 0),
        Segment(0, 5, 1, 6, 0),
        Segment(0, 6, 1, 7, 0),
        Segment(0, 7, 1, 8, 1),
    )


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_whenever_it_ends_a_sequence_gives_everything_back(steps: int) -> None:
    world = World(pages=6, sequences=2)
    sequences = [world.ask(name, [number, 2, 3, 4, 5], 9) for number, name in enumerate("abc")]
    for _ in range(steps):
        world.step()
    for sequence in sequences:
        world.batcher.end(sequence)
    assert world.batcher.idle
    assert world.pool.held == 0


@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(
        st.tuples(
            st.lists(st.integers(1, 2), min_size=1, max_size=14),
            st.integers(1, 6),
            st.integers(0, 9),
            st.booleans(),
        ),
        min_size=1,
        max_size=9,
    ),
    pages=st.integers(5, 12),
    step_tokens=st.integers(3, 20),
    speculate=st.sampled_from([0, 3]),
    turning=st.booleans(),
)
def test_every_schedule_comes_to_its_end(
    requests: list[tuple[list[int], int, int, bool]],
    pages: int,
    step_tokens: int,
    speculate: int,
    turning: bool,
) -> None:
    """Each has the answer that it would have alone, or is cancelled; what it had is given back."""
    world = World(pages, 3, speculate, step_tokens, turning=turning)
    coming = sorted(enumerate(requests), key=lambda one: one[1][2])
    all_of_them, at = [], 0
    while coming or not world.batcher.idle:
        while coming and coming[0][1][2] <= at:
            number, (prompt, count, _, leaves) = coming.pop(0)
            all_of_them.append((world.ask(str(number), prompt, count), leaves))
        world.step()
        at += 1
        for sequence, leaves in all_of_them:
            if leaves and sequence.answer_tokens == 2 and sequence in world.batcher.sequences:
                world.batcher.end(sequence)
        world.check()
        assert at < 500, "a sequence starves"
    assert world.pool.held == 0
    for sequence, _ in all_of_them:
        for before, token in zip(
            sequence.ids[sequence.prompt_tokens - 1 :], sequence.ids[sequence.prompt_tokens :], strict=False
        ):
            assert token == before % 9 + 1


def test_a_sequence_that_is_held_lets_others_go_first() -> None:
    world = World()
    held = world.ask("held", [1, 2, 3])
    held.held = True
    assert world.batcher.idle
    assert world.step() is None
    world.ask("next", [4, 5, 6])
    assert not world.batcher.idle
    world.step()
    assert held.slot < 0
    held.held = False
    world.run()
    assert sorted(world.ended) == ["held", "next"]


def test_what_is_forced_is_drafted_before_anything_was_won() -> None:
    """However little a sequence may lose; a guess from its text is not."""
    world = World(speculate=4)
    for rows in (1, 2, 4, 8) * 3:
        world.cost.measured(rows, 1.0 + 0.1 * rows)
    sequence = world.ask("one", [4], 8)
    sequence.forced = lambda: [6, 7, 8]
    world.step()
    batch = world.batcher.plan()
    assert batch is not None
    (piece,) = batch.pieces
    assert (list(piece.ids), piece.drafted) == ([5, 6, 7, 8], 3)


def test_an_answer_that_is_not_drawn_takes_no_part_until_it_is() -> None:
    """The others go on, with what its prompt has computed; nothing of it is computed twice."""
    world = World()
    late = world.ask("late", [1] * 9)
    batch = world.batcher.plan()
    assert batch is not None
    (piece,) = batch.pieces
    world.batcher.undrawn(piece)
    assert world.batcher.idle
    assert world.batcher.plan() is None
    world.ask("other", [1] * 9)
    assert shape(world.step()) == [("other", 8, 1)]
    assert shape(world.step()) == [("other", 9, 1)]
    world.batcher.decided(piece, [2])
    assert not late.undrawn
    assert shape(world.step()) == [("late", 9, 1), ("other", 10, 1)]
    world.run()


def test_an_answer_that_is_not_drawn_gives_up_its_pages_for_older_ones() -> None:
    """It is computed anew then."""
    world = World(pages=3)
    world.ask("old", [1] * 6, 6)
    world.step()
    young = world.ask("young", [2] * 3)
    batch = world.batcher.plan()
    assert batch is not None
    for piece in batch.pieces:
        if piece.sequence is young:
            world.batcher.undrawn(piece)
        else:
            world.decide(piece.sequence, batch, piece)
    assert young.undrawn
    while young.slot >= 0:
        world.step()
    assert not young.undrawn
    world.run()
    assert world.ended == ["old", "young"]
