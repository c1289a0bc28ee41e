from collections.abc import Sequence

from tests.unit.engine.test_batch_schedules import SIZE as PAGE
from tests.unit.engine.test_batch_schedules import Engine
from tpiedge.engine.batcher import Batch
from tpiedge.engine.sequence import RunningSequence, StepPiece
from tpiedge.wire.requests import GenerationRequest


class World(Engine):
    """A model whose answers continue 1, 2, 3, ... from the prompt's last token on."""

    def __init__(self, pages: int = 8, sequences: int = 3, speculate: int = 0, step_tokens: int = 16) -> None:
        super().__init__(
            pages,
            sequences=sequences,
            speculate=speculate,
            step_tokens=step_tokens,
            model=lambda ids: ids[-1] % 9 + 1,
        )

    def ask(self, name: str, prompt: Sequence[int], count: int = 3, scope: str = "") -> RunningSequence:
        request = GenerationRequest(name, tuple(prompt), count, keep_prefix=True, scope=scope)
        return self.batcher.add(request)

    def step(self) -> Batch | None:
        batch = self.batcher.plan()
        for piece in batch.pieces if batch else ():
            self.decide(piece)
        running, waiting = self.running, self.batcher.sequences[len(self.running) :]
        assert self.pool.held == len({page for one in running for page in one.pages})
        assert len({one.slot for one in running}) == len(running)
        assert all(one.done <= len(one.pages) * PAGE for one in running)
        assert not any(one.pages for one in waiting)
        return batch

    def decide(self, piece: StepPiece) -> None:
        sequence = piece.sequence
        self.batcher.decided(piece, self.drawn(piece) if piece.draws else ())
        if sequence.answer_tokens >= sequence.request.max_tokens:
            self.end(sequence)

    def run(self, most: int = 400) -> list[Batch]:
        batches = super().run(most)
        assert self.pool.held == 0
        return batches

    @property
    def names(self) -> list[str]:
        return [one.request.id for one in self.ended]


def shape(batch: Batch | None) -> list[tuple[str, int, int]]:
    assert batch is not None
    return [(piece.sequence.request.id, piece.start, len(piece.ids)) for piece in batch.pieces]


def test_prefill_only_step_takes_at_most_a_second_or_two_sweeps() -> None:
    for least_s, tokens in ((0.01, 256), (1.5, 400)):
        world = World(pages=400, step_tokens=400)
        for rows, seconds in ((1, least_s), (64, least_s + 0.1), (256, least_s + 0.99), (400, least_s + 1.4)):
            for _ in range(3):
                world.cost.measured(rows, seconds)
        world.ask("long", [1] * 900)
        assert shape(world.step()) == [("long", 0, tokens)]


def test_prefix_cache_is_not_shared_between_clients() -> None:
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


def test_grammar_forced_tokens_are_drafted_from_the_start() -> None:
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


def test_sequence_with_a_deferred_draw_is_not_scheduled() -> None:
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


def test_sequence_with_a_deferred_draw_can_be_preempted() -> None:
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
            world.decide(piece)
    assert young.undrawn
    while young.slot >= 0:
        world.step()
    assert not young.undrawn
    world.run()
    assert world.names == ["old", "young"]
