"""Memory of pages that nobody needs goes back by whole grains, and not for a little."""

from hypothesis import given
from hypothesis import strategies as st

from tpiedge.kv.pages import KVRoom, usual_grain


def test_what_grows_takes_a_grain_at_a_time() -> None:
    room = KVRoom(100, 10)
    assert [room.ask(needed) for needed in (1, 10, 11, 20, 95, 100)] == [10, 10, 20, 20, 100, 100]


def test_two_grains_less_give_memory_back() -> None:
    room = KVRoom(100, 10)
    assert [room.ask(needed) for needed in (50, 41, 31, 30)] == [50, 50, 50, 30]


def test_a_grain_is_at_most_everything() -> None:
    assert KVRoom(3, 10).ask(1) == 3


@given(st.integers(1, 300), st.integers(1, 400), st.lists(st.integers(0, 300), max_size=30))
def test_there_is_always_enough_and_never_much_more(pages: int, grain: int, needs: list[int]) -> None:
    room = KVRoom(pages, grain)
    for needed in needs:
        held = room.ask(min(needed, pages))
        assert min(needed, pages) <= held <= pages
        assert held < min(needed, pages) + 3 * grain


def test_the_usual_grain() -> None:
    assert usual_grain(1600, 8 << 20) == 100
    assert usual_grain(16, 1 << 20) == 4
    assert usual_grain(16, 0) >= 1
