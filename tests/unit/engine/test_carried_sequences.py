"""What running sequences leave to a batcher of the next epoch: they go on where they were, and every page is accounted
for, whoever comes for it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.engine.test_batcher import PAGE, World, shape
from tpiedge.engine.sequence import CarriedSequence, RunningSequence
from tpiedge.wire.requests import GenerationRequest

ANY = 100


def answered(one: RunningSequence) -> GenerationRequest:
    """The request for what is missing."""
    asked, answer = one.request, tuple(one.ids[one.prompt_tokens :])
    return replace(asked, answer_ids=answer)


def following(
    sequences: Sequence[CarriedSequence], pages: int, *, private: bool = False, room: int = 40
) -> World:
    world = World(pages=room)
    world.batcher.adopt(sequences, pages, private=private)
    return world


def test_a_sequence_goes_on_in_the_middle_of_a_page_and_of_its_prompt() -> None:
    world = World(step_tokens=7)
    one = world.ask("a", range(10, 20))
    world.step()
    pages, left = world.batcher.leave(ANY)
    assert pages == tuple(one.pages)
    assert left == (CarriedSequence.of(one.request, range(10, 17), (0, 1)),)

    after = following(left, len(pages))
    assert after.pool.held == len(pages)
    after.batcher.add(answered(one))
    batch = after.step()
    assert shape(batch) == [("a", 7, 3)]
    assert batch is not None
    (change,) = batch.tables
    assert (change.pages, change.filled) == ((0, 1, 2), 7)
    after.run()


def test_pages_that_two_share_are_carried_once() -> None:
    world = World(pages=20)
    world.ask("a", range(1, 10))
    world.step()
    world.ask("b", [*range(1, 9), 30])
    world.step()
    a, b = world.batcher.sequences
    pages, left = world.batcher.leave(ANY)
    assert [one.pages for one in left] == [(0, 1, 2), (0, 1, 3)]
    assert len(pages) == 4

    after = following(left, 4)
    after.batcher.add(answered(b))
    after.batcher.add(answered(a))
    assert [piece[1:] for piece in shape(after.step())] == [(9, 1), (10, 1)]
    after.run()


@pytest.mark.parametrize("private", [True, False])
def test_others_find_what_was_carried_unless_its_bits_show_who_computed_it(private: bool) -> None:
    world = World()
    one = world.ask("a", range(1, 10))
    world.step()
    pages, left = world.batcher.leave(ANY)
    after = following(left, len(pages), private=private)
    after.batcher.add(answered(one))
    after.step()
    other = after.ask("b", range(1, 10))
    after.step()
    assert other.cached == (0 if private else 8)
    after.run()
    again = after.ask("c", range(1, 10))
    after.run()
    assert again.cached == 8, "what this epoch computed is found"


def test_what_was_carried_keeps_its_scope() -> None:
    world = World(pages=20, step_tokens=32)
    ones = [world.ask(scope, range(1, 10), scope=scope) for scope in "ab"]
    world.step()
    pages, left = world.batcher.leave(ANY)
    assert not set(left[0].pages) & set(left[1].pages)
    after = following(left, len(pages))
    for one in ones:
        after.batcher.add(answered(one))
    after.run()
    others = [after.ask(f"again {scope}", range(1, 10), scope=scope) for scope in ("a", "b", "c", "")]
    after.run()
    assert [one.cached for one in others] == [8, 8, 0, 0]


def test_what_was_carried_is_for_no_other_scope() -> None:
    world = World()
    one = world.ask("a", range(1, 10), scope="a")
    world.step()
    pages, left = world.batcher.leave(ANY)
    after = following(left, len(pages))
    after.batcher.add(replace(answered(one), scope="b"))
    assert after.pool.held == 0
    assert shape(after.step()) == [("a", 0, 10)]
    after.run()


def test_other_tokens_under_the_same_name_are_computed() -> None:
    world = World()
    world.ask("a", range(1, 10))
    world.step()
    pages, left = world.batcher.leave(ANY)
    after = following(left, len(pages))
    after.ask("a", range(2, 11))
    assert after.pool.held == 0
    assert shape(after.step()) == [("a", 0, 9)]


def test_what_nobody_comes_for_is_given_back() -> None:
    world = World()
    world.ask("a", range(1, 10))
    world.step()
    pages, left = world.batcher.leave(ANY)
    after = following(left, len(pages))
    after.batcher.forget()
    assert after.pool.held == 0
    after.ask("a", range(1, 10))
    after.run()


def test_what_was_claimed_is_kept_when_the_rest_is_forgotten() -> None:
    world = World(pages=20, sequences=1)
    for name in "ab":
        world.ask(name, [ord(name)] * 9)
    world.step()
    pages, left = world.batcher.leave(ANY)
    after = World(pages=20, sequences=1)
    after.batcher.adopt(left, len(pages), private=False)
    first = after.ask("new", [1] * 9)
    claimed = after.batcher.add(answered(world.batcher.sequences[0]))
    after.step()
    after.batcher.forget()
    assert claimed.carried is not None
    assert first.slot == 0
    after.run()


def test_one_that_ends_before_it_begins_gives_its_pages_back() -> None:
    world = World()
    one = world.ask("a", range(1, 10))
    world.step()
    pages, left = world.batcher.leave(ANY)
    after = following(left, len(pages))
    after.batcher.end(after.batcher.add(answered(one)))
    assert after.pool.held == 0


@pytest.mark.parametrize("wish", [{"prompt_scores": True}, {"max_tokens": 0, "pooling": "mean"}])
def test_a_prompt_that_is_scanned_is_computed_anew(wish: dict[str, Any]) -> None:
    world = World()
    world.batcher.add(replace(GenerationRequest("a", tuple(range(1, 10)), 3), **wish))
    world.ask("b", range(20, 29))
    batch = world.batcher.plan()
    assert batch is not None
    for piece in batch.pieces:
        world.batcher.decided(piece, ())
    assert [one.request for one in world.batcher.leave(ANY)[1]] == ["b"]


def test_as_many_are_carried_as_a_message_has_room_for() -> None:
    world = World(pages=20)
    for name in "abc":
        world.ask(name, [ord(name)] * 5)
    world.step()
    pages, left = world.batcher.leave(5)
    assert [one.request for one in left] == ["a", "b"]
    assert len(pages) == 4


def test_nobody_starves_of_pages_that_are_held_for_others() -> None:
    """Two that were carried fill the cache: the first one needs a page more, and the second has no room to begin."""
    world = World(pages=4)
    for name in "ab":
        world.ask(name, [ord(name)] * 7, 6)
    world.step()
    a, b = world.batcher.sequences
    pages, left = world.batcher.leave(ANY)
    after = following(left, len(pages), room=4)
    for one in (a, b):
        after.batcher.add(answered(one))
    after.run()
    assert sorted(after.ended) == ["a", "b"]


def test_a_new_one_begins_though_pages_are_held_for_one_behind_it() -> None:
    world = World(pages=4)
    one = world.ask("a", [1] * 11, 3)
    world.step()
    pages, left = world.batcher.leave(ANY)
    after = following(left, len(pages), room=4)
    after.ask("new", [2] * 12, 3)
    after.batcher.add(answered(one))
    after.run()
    assert after.ended == ["new", "a"]


@given(st.data())
def test_every_page_is_accounted_for(data: st.DataObject) -> None:
    world = World(
        pages=data.draw(st.integers(6, 30)), sequences=4, speculate=data.draw(st.sampled_from([0, 3]))
    )
    token, length = st.integers(1, 3), 5 * PAGE
    for number in range(data.draw(st.integers(1, 6))):
        world.ask(str(number), data.draw(st.lists(token, min_size=1, max_size=length)), 3)
    for _ in range(data.draw(st.integers(1, 8))):
        world.step()
    running = {one.request.id: one for one in world.batcher.sequences}
    most = data.draw(st.integers(0, 12))
    pages, left = world.batcher.leave(most)
    assert len(set(pages)) == len(pages) <= most
    for one in left:
        sequence = running[one.request]
        assert one.done == sequence.done
        assert [pages[place] for place in one.pages] == sequence.pages[: len(one.pages)]

    after = following(left, len(pages), private=data.draw(st.booleans()), room=world.pool.pages)
    come = data.draw(st.lists(st.sampled_from(sorted(running)), unique=True)) if running else []
    for name in come:
        after.batcher.add(answered(running[name]))
    if data.draw(st.booleans()):
        after.ask("new", data.draw(st.lists(token, min_size=1, max_size=length)), 3)
    for _ in range(data.draw(st.integers(0, 3))):
        batch = after.batcher.plan()
        for piece in batch.pieces if batch else ():
            after.decide(piece.sequence, batch, piece)
    after.batcher.forget()
    after.run()
    assert set(after.ended) >= set(come)
