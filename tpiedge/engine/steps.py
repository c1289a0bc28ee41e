"""A step cut into chunks: which rows belong to which positions of which sequence. Pure.

A chunk is computed and reduced as one, whatever sequences its rows belong to, so that every block costs one message
per chunk.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from tpiedge.errors import ProtocolError
from tpiedge.wire.data import StepPlan

#: Of the hidden states of a step.
ACTIVATION_BYTES = 64 << 20

#: Of a chunk of rows that are computed apart: as many as native products of f32 and bf16 take, whose bits do not depend
#: on how many there are.
APART_ROWS = 16

_MESSAGE_BYTES = 1 << 20
_PRODUCT_ROWS = 16


@dataclass(frozen=True)
class StepLimits:
    """How many tokens a step holds, and how many of them are computed and reduced at a time."""

    step_tokens: int
    chunk_tokens: int

    @staticmethod
    def of(hidden_size: int) -> "StepLimits":
        """A step's f32 hidden states take at most ACTIVATION_BYTES, a message's 1 MiB."""
        row_bytes = 4 * hidden_size
        return StepLimits(max(1, ACTIVATION_BYTES // row_bytes), max(1, _MESSAGE_BYTES // row_bytes))

    def chunk_of(self, tokens: int, *, shared: bool) -> int:
        """Tokens of a chunk in a step of so many. Where nodes share the work there are two at least, if that leaves
        enough rows for efficient products: then one computes while the other's partials travel.

        The first of two halves has the same number of tiles of products as the second or one more: rounded down, it
        would leave a few rows for a third chunk.
        """
        if not shared or tokens < 3 * _PRODUCT_ROWS:
            return self.chunk_tokens
        half = -(-tokens // 2)
        return min(self.chunk_tokens, -(-half // _PRODUCT_ROWS) * _PRODUCT_ROWS)


@dataclass(frozen=True)
class ChunkSegment:
    """Rows [first_row, last_row) of a chunk: positions `start`, start + 1, ... of the sequence in `slot`."""

    slot: int
    start: int
    first_row: int
    last_row: int

    @property
    def stop(self) -> int:
        """One past the last position."""
        return self.start + self.last_row - self.first_row


@dataclass(frozen=True)
class Chunk:
    """Rows [first_row, last_row) of the step."""

    index: int
    first_row: int
    last_row: int
    segments: tuple[ChunkSegment, ...]


def chunks(plan: StepPlan) -> tuple[Chunk, ...]:
    """Every node derives the same chunks from the plan. Raises ProtocolError if its numbers contradict."""
    total = sum(segment.length for segment in plan.segments)
    if total != plan.tokens or total == 0 or plan.chunk_tokens == 0 or plan.apart_tokens > total:
        raise ProtocolError(f"step {plan.step}: {plan.tokens} tokens planned, segments hold {total}")
    return tuple(
        Chunk(index, first, last, tuple(_segments(plan, first, last)))
        for index, (first, last) in enumerate(_bounds(total, plan.apart_tokens, plan.chunk_tokens))
    )


def wanted_rows(plan: StepPlan) -> tuple[tuple[int, ...], tuple[Chunk, ...]]:
    """The step's rows whose final hidden states are wanted, and these, side by side, as chunks (no segments).

    Raises ProtocolError where there is none, or more of a segment than it has."""
    rows: list[int] = []
    end = 0
    for segment in plan.segments:
        end += segment.length
        if segment.wanted > segment.length:
            raise ProtocolError(
                f"step {plan.step}: {segment.wanted} of {segment.length} positions are wanted"
            )
        rows += range(end - segment.wanted, end)
    if not rows:
        raise ProtocolError(f"step {plan.step}: no position of it is wanted")
    apart = bisect_left(rows, plan.apart_tokens)
    bounds = _bounds(len(rows), apart, plan.chunk_tokens)
    return tuple(rows), tuple(Chunk(index, first, last, ()) for index, (first, last) in enumerate(bounds))


def _bounds(rows: int, apart: int, chunk_rows: int) -> Iterator[tuple[int, int]]:
    few = min(chunk_rows, APART_ROWS)
    yield from ((start, min(start + few, apart)) for start in range(0, apart, few))
    yield from ((start, min(start + chunk_rows, rows)) for start in range(apart, rows, chunk_rows))


def _segments(plan: StepPlan, first: int, last: int) -> Iterator[ChunkSegment]:
    row = 0
    for segment in plan.segments:
        low, high = max(first, row), min(last, row + segment.length)
        if low < high:
            yield ChunkSegment(segment.slot, segment.start + low - row, low - first, high - first)
        row += segment.length
