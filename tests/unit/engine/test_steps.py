import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.engine.steps import StepLimits, chunks, segments_of, wanted_rows
from tpiedge.errors import ProtocolError
from tpiedge.wire.data import Segment, StepPlan


def plan(
    *segments: tuple[int, int, int],
    chunk_tokens: int,
    tokens: int | None = None,
    wanted: int = 1,
    apart: int = 0,
) -> StepPlan:
    total = sum(length for _, _, length in segments) if tokens is None else tokens
    parts = tuple(Segment(slot, start, length, min(wanted, length)) for slot, start, length in segments)
    return StepPlan(
        epoch=1, step=1, segments=parts, chunk_tokens=chunk_tokens, tokens=total, apart_tokens=apart
    )


@pytest.mark.parametrize(
    "bad",
    [plan((0, 0, 3), chunk_tokens=2, tokens=4), plan(chunk_tokens=2), plan((0, 0, 3), chunk_tokens=0)],
)
def test_contradictory_step_plan_is_refused(bad: StepPlan) -> None:
    with pytest.raises(ProtocolError):
        chunks(bad)


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    chunk_tokens=st.integers(1, 30),
    start=st.integers(0, 100),
    apart=st.integers(0, 160),
)
def test_chunks_cover_every_position_exactly_once(
    lengths: list[int], chunk_tokens: int, start: int, apart: int
) -> None:
    segments = [(slot, start + slot, length) for slot, length in enumerate(lengths)]
    given = plan(*segments, chunk_tokens=chunk_tokens, apart=min(apart, sum(lengths)))
    parts = chunks(given)
    rows = [
        (segment.slot, segment.start + i)
        for chunk in parts
        for segment in segments_of(given, chunk)
        for i in range(segment.length)
    ]
    assert rows == [(slot, first + i) for slot, first, length in segments for i in range(length)]
    assert all(chunk.stop - chunk.start <= chunk_tokens for chunk in parts)


@pytest.mark.parametrize("segment", [Segment(0, 0, 2, 3), Segment(0, 0, 2, 0)])
def test_invalid_wanted_row_counts_are_refused(segment: Segment) -> None:
    with pytest.raises(ProtocolError, match="wanted"):
        wanted_rows(StepPlan(1, 1, (segment,), 4, 2))


def test_rows_computed_apart_get_their_own_chunks() -> None:
    given = plan((0, 7, 1), (1, 3, 20), (2, 0, 50), chunk_tokens=40, apart=21, wanted=20)
    bounds = [(part.start, part.stop) for part in chunks(given)]
    assert bounds == [(0, 16), (16, 21), (21, 61), (61, 71)]
    rows, parts = wanted_rows(given)
    assert rows == [*range(21), *range(51, 71)]
    assert [(part.start, part.stop) for part in parts] == [(0, 16), (16, 21), (21, 41)]
    with pytest.raises(ProtocolError):
        chunks(plan((0, 0, 3), chunk_tokens=2, apart=4))


@given(
    tokens=st.integers(1, 5000),
    chunk_tokens=st.integers(1, 600),
    shared=st.booleans(),
    start=st.integers(0, 9),
)
def test_chunks_cover_the_step_and_fit_a_message(
    tokens: int, chunk_tokens: int, shared: bool, start: int
) -> None:
    limits = StepLimits(step_tokens=5000, chunk_tokens=chunk_tokens)
    size = limits.chunk_of(tokens, shared=shared)
    assert 1 <= size <= chunk_tokens
    parts = chunks(plan((0, start, tokens), chunk_tokens=size))
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == tokens
    if not shared or tokens < 48:
        assert size == chunk_tokens
    elif chunk_tokens >= 16:
        assert len(parts) >= 2, "one computes while the other travels"
        assert size % 16 == 0 or size == chunk_tokens
        if size < chunk_tokens:
            assert len(parts) == 2
            tiles = [-(-(part.stop - part.start) // 16) for part in parts]
            assert tiles[0] - tiles[1] in (0, 1), "as equal as whole tiles can be"


def test_steps_and_messages_are_limited_with_inputs_per_layer() -> None:
    assert StepLimits.of(2048) == StepLimits(8192, 128)
    e2b = StepLimits.of(1536, 35 * 256)
    assert e2b == StepLimits((64 << 20) // (4 * 10496), 170)
    assert StepLimits.of(64, 1 << 14).chunk_tokens * 4 * (64 + (1 << 14)) <= 8 << 20
