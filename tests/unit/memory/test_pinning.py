import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.memory.residency import smallest_ring
from tpiedge.memory.sweep import Placement, SparePins, in_turn, place, spread

BLOCKS = st.lists(st.lists(st.integers(1, 50), max_size=4), min_size=1, max_size=12).filter(any)


@pytest.mark.parametrize("period", [2, 3, 5])
def test_equal_pieces_are_pinned_at_the_papers_period(period: int) -> None:
    assert spread([7] * 20, 1, period) == set(range(period - 1, 20, period))


@pytest.mark.parametrize(
    ("nbytes", "mode", "window", "expected"),
    [
        (60, "auto", None, Placement(0, frozenset(range(6)))),
        (59, "all", None, 60),
        (9, "auto", None, 10),
        (10, "auto", None, Placement(10, frozenset())),
        (20, "auto", None, Placement(20, frozenset())),
        (30, "auto", None, Placement(20, frozenset({5}))),
        (40, "none", None, Placement(20, frozenset())),
        (40, "none", 35, Placement(35, frozenset())),
        (40, "auto", 10, Placement(10, frozenset({1, 3, 5}))),
        (40, "auto", 41, 41),
        (60, "none", None, Placement(20, frozenset())),
    ],
)
def test_placement_divides_memory_into_ring_and_pins(
    nbytes: int, mode: str, window: int | None, expected: Placement | int
) -> None:
    assert place([[10]] * 6, nbytes, mode, window) == expected  # type: ignore[arg-type]


@given(BLOCKS, st.integers(0, 1200))
def test_placement_fits_budget_and_smallest_ring(blocks: list[list[int]], nbytes: int) -> None:
    sizes = [size for block in blocks for size in block]
    found = place(blocks, nbytes)
    if isinstance(found, int):
        assert found > nbytes
        assert not isinstance(place(blocks, found), int)
    else:
        assert found.ring_bytes + sum(sizes[piece] for piece in found.pinned) <= nbytes
        assert found.ring_bytes >= smallest_ring(blocks, found.pinned)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(0, 100))
def test_pinned_spread_never_exceeds_its_percentage(sizes: list[int], percent: int) -> None:
    pinned, held, passed = spread(sizes, percent, 100), 0, 0
    for number, size in enumerate(sizes):
        passed += size
        held += size if number in pinned else 0
        assert 100 * held <= percent * passed
    assert 100 * (held + max(sizes)) > percent * passed


@given(BLOCKS, st.integers(0, 1200), st.lists(st.integers(0, 1200), min_size=2, max_size=2))
def test_spare_pins_fit_and_are_nested(blocks: list[list[int]], nbytes: int, spare: list[int]) -> None:
    sizes = [size for block in blocks for size in block]
    found = place(blocks, nbytes)
    if isinstance(found, int):
        return
    pins = SparePins(sizes, found)
    less, more = (pins.placement(one) for one in sorted(spare))
    assert found.pinned <= less.pinned <= more.pinned
    assert more.nbytes(sizes) <= found.nbytes(sizes) + max(spare)
    assert more.ring_bytes >= smallest_ring(blocks, more.pinned)
    assert pins.placement(0) == found
    assert pins.placement(sum(sizes)) == Placement(0, frozenset(range(len(sizes))))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 100])
def test_every_prefix_of_turn_order_is_evenly_spread(count: int) -> None:
    order = in_turn(range(count))
    assert sorted(order) == list(range(count))
    for taken in range(1, count + 1):
        places = sorted(order[:taken])
        gaps = [
            after - before for before, after in zip(places, [*places[1:], places[0] + count], strict=True)
        ]
        assert max(gaps) <= 4 * count / taken
