"""A step in chunks: which rows belong to which positions of which sequence, and the all-reduces of the chunks.

A chunk is computed and reduced as one, whatever sequences its rows belong to, so that every block costs one message
per chunk. Its sum is needed where the chunk's next block begins. Until then its parts travel while this node computes
the same block for other chunks; so with two chunks and more the network costs time only where it takes longer than the
arithmetic.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.collectives.summation import F32Array
from tpiedge.engine.meter import Meter
from tpiedge.errors import Cancelled, ProtocolError
from tpiedge.kernels.grid import Grid, add_sums, widened
from tpiedge.kernels.library import Pool
from tpiedge.wire.data import Segment, StepPlan
from tpiedge.wire.fields import WirePrecision

#: Of the hidden states of a step.
ACTIVATION_BYTES = 64 << 20

#: Of a chunk of rows that are computed apart: as many as native products of f32 and bf16 take, whose bits do not depend
#: on how many there are.
APART_ROWS = 16

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
        return StepLimits(max(1, ACTIVATION_BYTES // row_bytes), max(1, (1 << 20) // row_bytes))

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


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows [first_row, last_row) of the step."""

    index: int
    first_row: int
    last_row: int

    def segments(self, plan: StepPlan) -> Iterator[Segment]:
        """The positions of the rows, which no segment wants: the chunk's part of those of the plan."""
        row = 0
        for whole in plan.segments:
            low, high = max(self.first_row, row), min(self.last_row, row + whole.length)
            if low < high:
                yield Segment(whole.slot, whole.start + low - row, high - low, 0)
            row += whole.length


def chunks(plan: StepPlan) -> tuple[Chunk, ...]:
    """Every node derives the same chunks from the plan. Raises ProtocolError if its numbers contradict."""
    total = sum(segment.length for segment in plan.segments)
    if total != plan.tokens or total == 0 or plan.chunk_tokens == 0 or plan.apart_tokens > total:
        raise ProtocolError(f"step {plan.step}: {plan.tokens} tokens planned, segments hold {total}")
    return _cut(total, plan.apart_tokens, plan.chunk_tokens)


def wanted_rows(plan: StepPlan) -> tuple[tuple[int, ...], tuple[Chunk, ...]]:
    """The step's rows whose final hidden states are wanted, and these, side by side, as chunks.

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
    return tuple(rows), _cut(len(rows), bisect_left(rows, plan.apart_tokens), plan.chunk_tokens)


def _cut(rows: int, apart: int, chunk_rows: int) -> tuple[Chunk, ...]:
    starts = (*range(0, apart, min(chunk_rows, APART_ROWS)), *range(apart, rows, chunk_rows))
    return tuple(Chunk(index, *bounds) for index, bounds in enumerate(pairwise((*starts, rows))))


#: How many are under way while this node computes: each is in memory, here and as messages that came early. While the
#: oldest is awaited there is one more, begun already: its parts travel in that time.
_MOST: Final = 2


class StepCancelled(Cancelled):
    """Rank 0 ended the step; every node leaves it after the same block and chunk."""


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The rows of a chunk in the residual stream, as torch and as numpy see them."""

    index: int
    x_CH: Tensor
    array_CH: F32Array

    @staticmethod
    def of(x_TH: Tensor, chunk: Chunk) -> "ChunkRows":
        x_CH = x_TH[chunk.first_row : chunk.last_row]
        return ChunkRows(chunk.index, x_CH, x_CH.numpy())


@dataclass(frozen=True, slots=True)
class _UnderWay:
    rows: ChunkRows
    tag: Tag
    bias_H: Tensor | None
    grid: Grid | None
    begun: float


class OverlappedReduces:
    """The all-reduces of one node in one step. Every method raises PeerLost, ProtocolError or StepCancelled.

    Sums of a grid travel as integers, but where parts travel rounded, as `wire`: then as the numbers that they are.
    """

    def __init__(
        self, communicator: Communicator, meter: Meter, pool: Pool | None, wire: WirePrecision = "f32"
    ) -> None:
        self._communicator = communicator
        self._meter = meter
        self._pool = pool
        self._wire = wire
        self._under_way: deque[_UnderWay] = deque()

    def all_reduce(
        self,
        rows: ChunkRows,
        partial_CH: Tensor | None,
        tag: Tag,
        bias_H: Tensor | None,
        grid: Grid | None = None,
        *,
        wait: bool,
    ) -> None:
        """x += sum of all nodes' partials (+ the bias of the row-parallel matrix, once): at once (`wait`), or by the
        time that `settle` is called. `grid`: of partials that are sums; the same on all nodes."""
        contributes = partial_CH is not None
        if grid is not None and self._wire != "f32":
            partial_CH, grid = None if partial_CH is None else widened(partial_CH, grid), None
        given = partial_CH
        if given is None:  # what tells shape and kind
            given = rows.x_CH if grid is None else torch.empty(rows.x_CH.shape, dtype=torch.int32)
        self._meter.block = tag.block
        if wait:
            self.settle()
            with self._meter.reduce_span(tag.block):
                sum_CH = self._communicator.all_reduce(given, tag, contributes=contributes)
            self._take(rows, sum_CH, tag, bias_H, grid)
            return
        begun = time.perf_counter()
        with self._meter.reduce_span(tag.block):
            self._communicator.begin_all_reduce(given, tag, contributes=contributes)
        self._under_way.append(_UnderWay(rows, tag, bias_H, grid, begun))
        while len(self._under_way) > _MOST:
            self._finish()

    def settle(self, rows: ChunkRows | None = None) -> None:
        """Return once no all-reduce of these rows is under way; of any rows, without them."""
        while self._under_way and (rows is None or any(rows is one.rows for one in self._under_way)):
            self._finish()

    def ended_alone(self, rows: ChunkRows, tag: Tag) -> None:
        """After blocks of which `tag` is the last, on the only node: there was nothing to add up."""
        self._meter.block = tag.block
        self._communicator.all_reduce(rows.x_CH, tag)  # of one: it looks whether the step was cancelled
        self._check_cancelled(tag)

    def _finish(self) -> None:
        """The oldest: all ranks finish in the same order."""
        one = self._under_way.popleft()
        with self._meter.reduce_span(one.tag.block):
            sum_CH = self._communicator.finish_all_reduce(one.tag)
        self._meter.travelled(one.tag.block, one.begun)
        self._take(one.rows, sum_CH, one.tag, one.bias_H, one.grid)

    def _take(
        self, rows: ChunkRows, sum_CH: Tensor, tag: Tag, bias_H: Tensor | None, grid: Grid | None
    ) -> None:
        self._check_cancelled(tag)
        if grid is not None:
            add_sums(rows.x_CH, sum_CH, grid, self._pool)
        else:
            # numpy adds with the same bits, and a call of it costs less than one of torch right after a wake-up.
            np.add(rows.array_CH, sum_CH.numpy(), out=rows.array_CH)
        if bias_H is not None:
            np.add(rows.array_CH, bias_H.numpy(), out=rows.array_CH)

    def _check_cancelled(self, tag: Tag) -> None:
        if self._communicator.cancelled:
            raise StepCancelled(f"step {tag.step} was cancelled after block {tag.block}")
