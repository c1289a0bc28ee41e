"""The all-reduces of a step's chunks: one at a time, or some under way while other chunks are computed.

A chunk's sum is needed where the chunk's next block begins. Until then its parts travel while this node computes the
same block for other chunks; so with two chunks and more the network costs time only where it takes longer than the
arithmetic.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tpiedge.collectives.arrays import F32Array
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.engine.meter import Meter
from tpiedge.engine.steps import Chunk
from tpiedge.errors import Cancelled
from tpiedge.kernels.grid import Grid, add_sums, widened
from tpiedge.kernels.library import Pool
from tpiedge.wire.fields import WirePrecision

#: How many are under way while this node computes: each is in memory, here and as messages that came early. While the
#: oldest is awaited there is one more, begun already: its parts travel in that time.
_MOST: Final = 2


class StepCancelled(Cancelled):
    """Rank 0 ended the step; every node leaves it after the same block and chunk."""


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """A chunk of the step and its rows of the residual stream, as torch and as numpy see them."""

    chunk: Chunk
    x_CH: Tensor
    array_CH: F32Array

    @staticmethod
    def of(x_TH: Tensor, chunk: Chunk) -> "ChunkRows":
        x_CH = x_TH[chunk.first_row : chunk.last_row]
        return ChunkRows(chunk, x_CH, x_CH.numpy())


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
        given = partial_CH if partial_CH is not None else _nothing(rows, grid)
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


def _nothing(rows: ChunkRows, grid: Grid | None) -> Tensor:
    """What tells shape and kind where a node has no part."""
    return rows.x_CH if grid is None else torch.empty(rows.x_CH.shape, dtype=torch.int32)
