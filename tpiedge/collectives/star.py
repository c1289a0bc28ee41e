"""The star: every rank sends its partial to rank 0, which sums in the order of ranks and answers (TPI-LLM,
section 3.2).

Two one-way latencies and 2 (N - 1) messages per all-reduce, all of them over rank 0's links.
"""

import time
from collections.abc import Sequence
from math import isfinite
from typing import Final

import numpy as np
import torch

from tpiedge.collectives.arrays import Array, array_of, header_of, read_array
from tpiedge.collectives.communicator import Liveness, Tag
from tpiedge.collectives.inbox import Inbox
from tpiedge.errors import InternalError, ProtocolError
from tpiedge.transport.endpoint import Buffer, Endpoint, Unreachable
from tpiedge.wire.data import CANCEL, Gathered, Hidden, Partial, Reduced, StepPlan
from tpiedge.wire.messages import Message

__all__ = ["StarLeaf", "StarRoot", "node_name"]

_SEND_SLICE_S: Final = 0.05


def node_name(rank: int) -> str:
    """The transport's name of a rank."""
    return f"node-{rank}"


class _Star:
    """What root and leaf share: who they are and how they send."""

    def __init__(self, endpoint: Endpoint, liveness: Liveness, epoch: int, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.cancelled = False
        self.wait_s = 0.0
        self._epoch = epoch
        self._endpoint = endpoint
        self._liveness = liveness
        peers = range(1, size) if rank == 0 else (0,)
        self._inbox = Inbox(endpoint, {node_name(peer): peer for peer in peers}, epoch, liveness)

    @property
    def dropped(self) -> int:
        """Messages that came too late."""
        return self._inbox.dropped

    def _send(self, rank: int, message: Message, tensors: Sequence[Buffer], what: str) -> None:
        while True:
            try:
                self._endpoint.send(message, tensors, node_name(rank), _SEND_SLICE_S)
                return
            except Unreachable:
                self._liveness.check(rank, what)


class StarRoot(_Star):
    """Rank 0. Owns nothing: the caller closes `hub`."""

    def __init__(self, hub: Endpoint, liveness: Liveness, *, epoch: int, size: int) -> None:
        super().__init__(hub, liveness, epoch, 0, size)
        self._leaves = set(range(1, size))
        self._cancel_requested = False

    def request_cancel(self) -> None:
        self._cancel_requested = True

    def announce(self, plan: StepPlan) -> None:
        self.cancelled = self._cancel_requested = False
        self._inbox.begin(plan.step)
        self._send_all(plan, (), f"the plan of step {plan.step}")

    def next_plan(self) -> StepPlan:
        raise InternalError("rank 0 makes the plans")

    def all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> torch.Tensor:
        own = array_of(partial)
        what = f"the all-reduce of {tag}"
        started = time.perf_counter()
        parts: dict[int, Array] = {0: own} if contributes else {}
        for rank, envelope in self._inbox.collect(Partial, tag, self._leaves, what):
            if envelope.tensors:
                parts[rank] = read_array(envelope, rank, own.shape)
        total = _sum(parts, own.shape, what)
        cancelled = self._cancel_requested
        reduced = Reduced(
            self._epoch, tag.step, tag.block, tag.chunk, CANCEL if cancelled else 0, header_of(total)
        )
        self._send_all(reduced, (total.data,), what)
        self.cancelled = cancelled
        self.wait_s += time.perf_counter() - started
        return torch.from_numpy(total)

    def broadcast(self, hidden: torch.Tensor, tag: Tag) -> torch.Tensor:
        array = array_of(hidden)
        message = Hidden(self._epoch, tag.step, tag.chunk, header_of(array))
        self._send_all(message, (array.data,), f"the broadcast of {tag}")
        return hidden

    def gather(self, part: torch.Tensor, tag: Tag) -> list[torch.Tensor] | None:
        parts = [part] * self.size
        for rank, envelope in self._inbox.collect(Gathered, tag, self._leaves, f"the gather of {tag}"):
            parts[rank] = torch.from_numpy(read_array(envelope, rank, None).copy())
        return parts

    def _send_all(self, message: Message, tensors: Sequence[Buffer], what: str) -> None:
        for rank in range(1, self.size):
            self._send(rank, message, tensors, what)


class StarLeaf(_Star):
    """Any other rank. Owns nothing: the caller closes `spoke`."""

    def __init__(self, spoke: Endpoint, liveness: Liveness, *, epoch: int, rank: int, size: int) -> None:
        super().__init__(spoke, liveness, epoch, rank, size)

    def request_cancel(self) -> None:
        raise InternalError("only rank 0 cancels")

    def announce(self, plan: StepPlan) -> None:
        raise InternalError(f"only rank 0 makes plans: {plan}")

    def next_plan(self) -> StepPlan:
        plan = self._inbox.next_plan(0)
        self.cancelled = False
        return plan

    def all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> torch.Tensor:
        own = array_of(partial)
        what = f"the all-reduce of {tag}"
        started = time.perf_counter()
        header = header_of(own) if contributes else None
        message = Partial(self._epoch, tag.step, tag.block, tag.chunk, self.rank, header)
        self._send(0, message, (own.data,) if contributes else (), what)
        total, flags = self._await(Reduced, tag, own.shape, what)
        self.cancelled = bool(flags & CANCEL)
        self.wait_s += time.perf_counter() - started
        return total

    def broadcast(self, hidden: torch.Tensor, tag: Tag) -> torch.Tensor:
        what = f"the broadcast of {tag}"
        tag = Tag(tag.step, 0, tag.chunk)
        return self._await(Hidden, tag, tuple(hidden.shape), what)[0]

    def gather(self, part: torch.Tensor, tag: Tag) -> list[torch.Tensor] | None:
        own = array_of(part)
        message = Gathered(self._epoch, tag.step, tag.block, tag.chunk, self.rank, header_of(own))
        self._send(0, message, (own.data,), f"the gather of {tag}")
        return None

    def _await(self, kind: type, tag: Tag, shape: tuple[int, ...], what: str) -> tuple[torch.Tensor, int]:
        """The tensor of rank 0's answer, and its flags."""
        (_, envelope), *_ = self._inbox.collect(kind, tag, {0}, what)
        flags = int(getattr(envelope.message, "flags", 0))
        return torch.from_numpy(read_array(envelope, 0, shape).copy()), flags


def _sum(parts: dict[int, Array], shape: tuple[int, ...], what: str) -> Array:
    """((p0 + p1) + p2) + ..., in a new array; ProtocolError names who sent a value that is not finite."""
    ranks = sorted(parts)
    if not ranks:
        return np.zeros(shape, np.float32)
    if len(ranks) == 1:
        total = parts[ranks[0]].copy()
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.add(parts[ranks[0]], parts[ranks[1]])
            for rank in ranks[2:]:
                np.add(total, parts[rank], out=total)
    if not _is_finite(total):
        guilty = [rank for rank in ranks if not np.isfinite(parts[rank]).all()]
        raise ProtocolError(
            f"node {guilty[0]} contributed a value that is not finite to {what}"
            if guilty
            else f"the sum of {what} overflows f32"
        )
    return total


def _is_finite(array: Array) -> bool:
    """A sum is cheaper than a test of every element; where it overflows the elements decide."""
    with np.errstate(over="ignore", invalid="ignore"):
        return isfinite(array.sum()) or bool(np.isfinite(array).all())
