"""A step cut into chunks: which rows belong to which positions of which sequence. Pure.

A chunk is computed and reduced as one, whatever sequences its rows belong to, so that every block costs one message
per chunk (design, sections 7 and 8).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tpiedge.errors import ProtocolError
from tpiedge.wire.data import StepPlan

__all__ = ["MESSAGE_BYTES", "Chunk", "Piece", "chunk_tokens", "chunks"]

#: A message of a block carries at most about this many bytes of hidden states.
MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True)
class Piece:
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
    pieces: tuple[Piece, ...]


def chunk_tokens(hidden_size: int) -> int:
    """Tokens whose f32 hidden states fill one message."""
    return max(1, MESSAGE_BYTES // (4 * hidden_size))


def chunks(plan: StepPlan) -> tuple[Chunk, ...]:
    """Every node derives the same chunks from the plan. Raises ProtocolError if its numbers contradict."""
    total = sum(segment.length for segment in plan.segments)
    if total != plan.tokens or total == 0 or plan.chunk_tokens == 0:
        raise ProtocolError(f"step {plan.step}: {plan.tokens} tokens planned, segments hold {total}")
    starts = range(0, total, plan.chunk_tokens)
    bounds = [(start, min(start + plan.chunk_tokens, total)) for start in starts]
    return tuple(
        Chunk(index, first, last, tuple(_pieces(plan, first, last))) for index, (first, last) in enumerate(bounds)
    )


def _pieces(plan: StepPlan, first: int, last: int) -> Iterator[Piece]:
    row = 0
    for segment in plan.segments:
        low, high = max(first, row), min(last, row + segment.length)
        if low < high:
            yield Piece(segment.slot, segment.start + low - row, low - first, high - first)
        row += segment.length
