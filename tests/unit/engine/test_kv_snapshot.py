from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.engine.test_batcher import PAGE, World, shape
from tpiedge.engine.kv_transfer import SnapshotHeader, SnapshotReader, SnapshotStore, SnapshotWriter
from tpiedge.engine.sequence import RunningSequence, SavedSequence
from tpiedge.wire.control import KVSnapshot
from tpiedge.wire.requests import GenerationRequest

ANY = 100


def answered(one: RunningSequence) -> GenerationRequest:
    request, answer = one.request, tuple(one.ids[one.prompt_tokens :])
    return replace(request, answer_ids=answer)


def following(
    sequences: Sequence[SavedSequence], pages: int, *, private: bool = False, room: int = 40
) -> World:
    world = World(pages=room)
    world.batcher.adopt(sequences, pages, private=private)
    return world


def test_restored_sequence_continues_mid_page_and_mid_prompt() -> None:
    world = World(step_tokens=7)
    one = world.ask("a", range(10, 20))
    world.step()
    pages, saved = world.batcher.to_save(ANY)
    assert pages == tuple(one.pages)
    assert saved == (SavedSequence.of(one, (0, 1)),)

    after = following(saved, len(pages))
    assert after.pool.held == len(pages)
    after.batcher.add(answered(one))
    batch = after.step()
    assert shape(batch) == [("a", 7, 3)]
    assert batch is not None
    (change,) = batch.tables
    assert (change.pages, change.filled) == ((0, 1, 2), 7)
    after.run()


@pytest.mark.parametrize("private", [True, False])
def test_restored_pages_are_shared_unless_they_are_private(private: bool) -> None:
    world = World()
    one = world.ask("a", range(1, 10))
    world.step()
    pages, saved = world.batcher.to_save(ANY)
    after = following(saved, len(pages), private=private)
    after.batcher.add(answered(one))
    after.step()
    other = after.ask("b", range(1, 10))
    after.step()
    assert other.cached == (0 if private else 8)
    after.run()
    again = after.ask("c", range(1, 10))
    after.run()
    assert again.cached == 8, "what this epoch computed is found"


def test_restored_pages_of_other_tokens_are_not_used() -> None:
    world = World()
    world.ask("a", range(1, 10))
    world.step()
    pages, saved = world.batcher.to_save(ANY)
    after = following(saved, len(pages))
    after.ask("a", range(2, 11))
    assert after.pool.held == 0
    assert shape(after.step()) == [("a", 0, 9)]


@given(st.data())
def test_save_and_restore_leaks_no_pages(data: st.DataObject) -> None:
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
    pages, saved = world.batcher.to_save(most)
    assert len(set(pages)) == len(pages) <= most
    for one in saved:
        sequence = running[one.request]
        assert one.done == sequence.done
        assert [pages[place] for place in one.pages] == sequence.pages[: len(one.pages)]

    after = following(saved, len(pages), private=data.draw(st.booleans()), room=world.pool.pages)
    come = data.draw(st.lists(st.sampled_from(sorted(running)), unique=True)) if running else []
    for name in come:
        after.batcher.add(answered(running[name]))
    if data.draw(st.booleans()):
        after.ask("new", data.draw(st.lists(token, min_size=1, max_size=length)), 3)
    for _ in range(data.draw(st.integers(0, 3))):
        batch = after.batcher.plan()
        for piece in batch.pieces if batch else ():
            after.decide(piece)
    after.batcher.free_restored()
    after.run()
    assert set(after.names) >= set(come)


@pytest.mark.parametrize("page", [-1, 2])
def test_snapshot_naming_unsaved_pages_is_refused(tmp_path: Path, page: int) -> None:
    store = SnapshotStore(tmp_path, b"key")
    with ExitStack() as stack:
        SnapshotWriter(store, 1, SnapshotHeader([], [], 2, [SavedSequence("a", "", 8, "", (0, page))]), stack)
    with ExitStack() as stack:
        reader = SnapshotReader(store, KVSnapshot(1, 2, False, ()), (), 2, stack)
        assert "cannot be read" in reader.error
        assert not reader.header.sequences


@pytest.mark.parametrize(("facts", "pages"), [(("q4",), 2), (("q8",), 1), (("q8",), 2)])
def test_snapshot_is_read_only_with_equal_facts_and_pages(
    tmp_path: Path, facts: tuple[str, ...], pages: int
) -> None:
    store = SnapshotStore(tmp_path, b"key")
    parts = np.arange(32, dtype=np.uint8).reshape(2, 16)
    with ExitStack() as stack:
        writer = SnapshotWriter(store, 1, SnapshotHeader(["q8"], [3], 2), stack)
        writer.add(parts)
        writer.add(parts + 1)
    with ExitStack() as stack:
        reader = SnapshotReader(store, KVSnapshot(1, pages, False, ()), facts, 2, stack)
        assert (reader.error == "") == (facts == ("q8",) and pages == 2)
        into = np.empty_like(parts)
        if not reader.error:
            assert reader.read(into, 3, 1, 0) == ""
            np.testing.assert_array_equal(into, parts + 1)
        assert reader.read(into, 4, 0, 0)
    assert not list(tmp_path.iterdir())
