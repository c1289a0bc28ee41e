"""Memory for the KV cache is taken and given back by whole grains, and never less than what is written."""

from hypothesis import given
from hypothesis import strategies as st

from tpiedge.kv.room import KVRoom


def test_a_sequence_that_grows_takes_a_grain_at_a_time() -> None:
    room = KVRoom(2, 64, 8)
    assert room.held == (0, 0)
    seen = []
    for stop in range(1, 18):
        assert not room.ask(1, stop, stop)
        seen.append(room.held[1])
    assert seen == [8] * 8 + [16] * 8 + [24]
    assert room.held[0] == 0


def test_a_shorter_sequence_gives_back_what_is_two_grains_too_much() -> None:
    room = KVRoom(1, 64, 8)
    room.ask(0, 41, 41)
    assert room.held == (48,)
    assert room.ask(0, 33, 33) == range(0)  # 40 would do
    assert room.ask(0, 9, 33) == range(0)  # it is going to be longer
    assert room.ask(0, 9, 9) == range(16, 48)
    assert room.held == (16,)


def test_a_grain_is_at_most_everything() -> None:
    room = KVRoom(1, 10, 1000)
    room.ask(0, 1, 1)
    assert room.held == (10,)
    assert room.ask(0, 1, 1) == range(0)


@given(
    st.integers(1, 100),
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 120)), max_size=30),
)
def test_what_is_written_is_held(capacity: int, grain: int, asked: list[tuple[int, int]]) -> None:
    room = KVRoom(1, capacity, grain)
    grain = max(1, grain)
    for stop, reach in asked:
        stop = min(stop, capacity)
        before = room.held[0]
        gone = room.ask(0, stop, reach)
        held = room.held[0]
        assert stop <= held <= capacity
        assert gone == (range(held, before) if held < before else range(0))
        assert not gone or len(gone) >= 2 * min(grain, capacity)
        assert held <= max(before, stop + grain)
