"""The star: every rank sends its partial to rank 0, which sums in the order of ranks and answers (TPI-LLM,
section 3.2).

Two one-way latencies and 2 (N - 1) messages per all-reduce, all of them over rank 0's links.
"""

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from tpiedge.collectives.arrays import Array, array_of, header_of, read_array
from tpiedge.collectives.communicator import Doing, Liveness, Tag
from tpiedge.collectives.inbox import Inbox
from tpiedge.collectives.summation import OrderedSum
from tpiedge.errors import InternalError
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
        self._ranks = {node_name(peer): peer for peer in peers}
        self._inbox = Inbox(endpoint, self._ranks, epoch, liveness)

    @property
    def dropped(self) -> int:
        """Messages that came too late."""
        return self._inbox.dropped

    def _send(self, message: Message, tensors: Sequence[Buffer], what: Doing) -> None:
        """To every peer."""
        names = tuple(self._ranks)
        while True:
            try:
                self._endpoint.send(message, tensors, names, _SEND_SLICE_S)
                return
            except Unreachable as error:
                self._liveness.check(self._ranks[error.peer], str(what))
                # Those before it have the message.
                names = names[names.index(error.peer) :]


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
        self._send(plan, (), Doing("plan", f"step {plan.step}"))

    def next_plan(self) -> StepPlan:
        raise InternalError("rank 0 makes the plans")

    def all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> torch.Tensor:
        own = array_of(partial)
        what = Doing("all-reduce", tag)
        started = time.perf_counter()
        with np.errstate(over="ignore", invalid="ignore"):
            parts = OrderedSum(own if contributes else None)
            for rank, envelope in self._inbox.collect(Partial, tag, self._leaves, what):
                parts.put(rank, read_array(envelope, rank, own.shape) if envelope.tensors else None)
            total = parts.result(own.shape, what)
        cancelled = self._cancel_requested
        reduced = Reduced(
            self._epoch, tag.step, tag.block, tag.chunk, CANCEL if cancelled else 0, header_of(total)
        )
        self._send(reduced, (total.data,), what)
        self.cancelled = cancelled
        self.wait_s += time.perf_counter() - started
        return partial if contributes else torch.from_numpy(total)

    def broadcast(self, hidden: torch.Tensor, tag: Tag) -> torch.Tensor:
        array = array_of(hidden)
        message = Hidden(self._epoch, tag.step, tag.chunk, header_of(array))
        self._send(message, (array.data,), Doing("broadcast", tag))
        return hidden

    def gather(self, part: torch.Tensor, tag: Tag) -> list[torch.Tensor] | None:
        parts = [part] * self.size
        for rank, envelope in self._inbox.collect(Gathered, tag, self._leaves, Doing("gather", tag)):
            parts[rank] = torch.from_numpy(read_array(envelope, rank, None).copy())
        return parts


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
        what = Doing("all-reduce", tag)
        started = time.perf_counter()
        header = header_of(own) if contributes else None
        message = Partial(self._epoch, tag.step, tag.block, tag.chunk, self.rank, header)
        self._send(message, (own.data,) if contributes else (), what)
        total, flags = self._await(Reduced, tag, own.shape, what)
        self.cancelled = bool(flags & CANCEL)
        if contributes:
            np.copyto(own, total)
        self.wait_s += time.perf_counter() - started
        return partial if contributes else torch.from_numpy(total.copy())

    def broadcast(self, hidden: torch.Tensor, tag: Tag) -> torch.Tensor:
        what = Doing("broadcast", tag)
        tag = Tag(tag.step, 0, tag.chunk)
        return torch.from_numpy(self._await(Hidden, tag, tuple(hidden.shape), what)[0].copy())

    def gather(self, part: torch.Tensor, tag: Tag) -> list[torch.Tensor] | None:
        own = array_of(part)
        message = Gathered(self._epoch, tag.step, tag.block, tag.chunk, self.rank, header_of(own))
        self._send(message, (own.data,), Doing("gather", tag))
        return None

    def _await(self, kind: type, tag: Tag, shape: tuple[int, ...], what: Doing) -> tuple[Array, int]:
        """The array of rank 0's answer, read-only, and its flags."""
        (_, envelope), *_ = self._inbox.collect(kind, tag, {0}, what)
        flags = int(getattr(envelope.message, "flags", 0))
        return read_array(envelope, 0, shape), flags
