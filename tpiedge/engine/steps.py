"""Cuts steps into chunks. A chunk is one message per block. While a chunk's sum travels, this node computes other
chunks."""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
from tpiedge.kernels.grid import PLAIN_END, BlockEnd, Grid, add_sums, widened
from tpiedge.kernels.library import Pool
from tpiedge.wire.data import Segment, StepPlan
from tpiedge.wire.fields import ACTIVATION_BYTES, WirePrecision

#: Most rows of a chunk computed apart: up to this number, native f32 and bf16 products give a row the same bits.
APART_ROWS = 16

_PRODUCT_ROWS = 16


@dataclass(frozen=True)
class StepLimits:
    step_tokens: int
    chunk_tokens: int

    @staticmethod
    def of(hidden_size: int, input_columns: int = 0) -> "StepLimits":
        """Limits a step's activations to ACTIVATION_BYTES, a message to 1 MiB, and to 8 MiB with inputs of layers."""
        row_bytes, whole_bytes = 4 * hidden_size, 4 * (hidden_size + input_columns)
        chunk_tokens = min((1 << 20) // row_bytes, (8 << 20) // whole_bytes)
        return StepLimits(max(1, ACTIVATION_BYTES // whole_bytes), max(1, chunk_tokens))

    def chunk_of(self, tokens: int, *, shared: bool) -> int:
        """Returns a chunk's number of rows in a step of `tokens` rows. `shared`: chunks travel between nodes."""
        if not shared or tokens < 3 * _PRODUCT_ROWS:
            return self.chunk_tokens
        # One half travels while the other is computed. Whole tiles, lest few rows make a third chunk.
        half = -(-tokens // 2)
        return min(self.chunk_tokens, -(-half // _PRODUCT_ROWS) * _PRODUCT_ROWS)


def segments_of(plan: StepPlan, rows: slice) -> Iterator[Segment]:
    row = 0
    for whole in plan.segments:
        low, high = max(rows.start, row), min(rows.stop, row + whole.length)
        if low < high:
            yield Segment(whole.slot, whole.start + low - row, high - low, 0)
        row += whole.length


def chunks(plan: StepPlan) -> list[slice]:
    """Cuts the step's rows into chunks, alike on every node. Raises ProtocolError."""
    total = sum(segment.length for segment in plan.segments)
    if total != plan.tokens or total == 0 or plan.chunk_tokens == 0 or plan.apart_tokens > total:
        raise ProtocolError(f"step {plan.step}: {plan.tokens} tokens planned, segments hold {total}")
    return _cut(total, plan.apart_tokens, plan.chunk_tokens)


def wanted_rows(plan: StepPlan) -> tuple[list[int], list[slice]]:
    """Returns the wanted rows' indexes, and slices that cut this list into chunks. Raises ProtocolError."""
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
    return rows, _cut(len(rows), bisect_left(rows, plan.apart_tokens), plan.chunk_tokens)


def _cut(rows: int, apart: int, chunk_rows: int) -> list[slice]:
    starts = (*range(0, apart, min(chunk_rows, APART_ROWS)), *range(apart, rows, chunk_rows))
    return [slice(*bounds) for bounds in pairwise((*starts, rows))]


#: Most all-reduces under way while this node computes. One more is begun while the oldest is awaited.
_MOST: Final = 2


class StepCancelled(Cancelled):
    """Rank 0 ended the step. All nodes leave it after the same block."""


@dataclass(frozen=True, slots=True)
class ChunkRows:
    index: int
    x_CH: Tensor
    array_CH: F32Array
    inputs_CI: Tensor | None  # of all layers

    @staticmethod
    def of(x_TH: Tensor, cuts: Sequence[slice], inputs_TI: Tensor | None = None) -> "list[ChunkRows]":
        parts = [(x_TH[rows], None if inputs_TI is None else inputs_TI[rows]) for rows in cuts]
        return [ChunkRows(index, x_CH, x_CH.numpy(), own) for index, (x_CH, own) in enumerate(parts)]


@dataclass(frozen=True, slots=True)
class _UnderWay:
    rows: ChunkRows
    tag: Tag
    end: BlockEnd
    grid: Grid | None
    begun: float
    then: Callable[[], None] | None


class OverlappedReduces:
    """Does one node's all-reduces in one step. Methods raise PeerLost, ProtocolError or StepCancelled."""

    def __init__(
        self, communicator: Communicator, meter: Meter, pool: Pool | None, wire: WirePrecision = "f32"
    ) -> None:
        self._communicator, self._meter, self._pool, self._wire = communicator, meter, pool, wire
        self._under_way: deque[_UnderWay] = deque()

    def all_reduce(
        self,
        rows: ChunkRows,
        partial_CH: Tensor | None,
        tag: Tag,
        end: BlockEnd = PLAIN_END,
        grid: Grid | None = None,
        then: Callable[[], None] | None = None,
        *,
        wait: bool,
    ) -> None:
        """Changes `rows` by the sum of all nodes' partials, as `end` says, and calls `then`. Without `wait`, it happens
        later, at the latest in `finish`. A `partial_CH` of None counts as zeros. With `grid`, partials are integers."""
        contributes = partial_CH is not None
        if grid is not None and self._wire != "f32":
            partial_CH, grid = None if partial_CH is None else widened(partial_CH, grid), None
        given = partial_CH
        if given is None:  # only its shape and dtype count
            count, width = rows.x_CH.shape
            dtype = torch.float32 if grid is None else torch.int32
            given = torch.empty((end.sums * count, width), dtype=dtype)
        self._meter.block = tag.block
        one = _UnderWay(rows, tag, end, grid, time.perf_counter(), then)
        if wait:
            self.finish()
            with self._meter.reduce_span(tag.block):
                sum_CH = self._communicator.all_reduce(given, tag, contributes=contributes)
            self._take(one, sum_CH)
            return
        with self._meter.reduce_span(tag.block):
            self._communicator.begin_all_reduce(given, tag, contributes=contributes)
        self._under_way.append(one)
        while len(self._under_way) > _MOST:
            self._finish_oldest()

    def finish(self, rows: ChunkRows | None = None) -> None:
        while self._under_way and (rows is None or any(rows is one.rows for one in self._under_way)):
            self._finish_oldest()

    def ended_alone(self, rows: ChunkRows, tag: Tag) -> None:
        self._meter.block = tag.block
        self._communicator.all_reduce(rows.x_CH, tag)  # of one rank: only sets `cancelled`
        self._check_cancelled(tag)

    def _finish_oldest(self) -> None:
        one = self._under_way.popleft()
        with self._meter.reduce_span(one.tag.block):
            sum_CH = self._communicator.finish_all_reduce(one.tag)
        self._meter.travelled(one.tag.block, one.begun)
        self._take(one, sum_CH)

    def _take(self, one: _UnderWay, sum_CH: Tensor) -> None:
        self._check_cancelled(one.tag)
        rows = one.rows
        if one.grid is None and one.end is PLAIN_END:
            # numpy adds with the same bits, and a call of it costs less than one of torch right after a wake-up.
            np.add(rows.array_CH, sum_CH.numpy(), out=rows.array_CH)
        else:
            add_sums(rows.x_CH, sum_CH, one.grid, self._pool, one.end)
        if one.then is not None:
            one.then()

    def _check_cancelled(self, tag: Tag) -> None:
        if self._communicator.cancelled:
            raise StepCancelled(f"step {tag.step} was cancelled after block {tag.block}")
