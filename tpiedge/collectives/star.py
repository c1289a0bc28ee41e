"""The star: every rank sends its partial to rank 0, which sums in the order of ranks and answers (TPI-LLM,
section 3.2).

Two one-way latencies and 2 (N - 1) messages per all-reduce, all of them over rank 0's links.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
import torch

from tpiedge.collectives.arrays import Array, array_of, header_of
from tpiedge.collectives.communicator import Doing, Liveness, Tag
from tpiedge.collectives.frames import Expected, ReduceFrames, Shape
from tpiedge.collectives.inbox import Inbox
from tpiedge.collectives.summation import OrderedSum
from tpiedge.errors import InternalError, ProtocolError
from tpiedge.transport.endpoint import Buffer, Endpoint, Unreachable
from tpiedge.transport.framing import TENSOR, frame_of
from tpiedge.transport.reduction import DONE, Combine
from tpiedge.wire.codec import encode
from tpiedge.wire.data import ADD_OWN, CANCEL, Gathered, Hidden, Partial, Reduced, StepPlan
from tpiedge.wire.flat import FLAT_BYTES
from tpiedge.wire.messages import Message
from tpiedge.wire.stencil import place_of
from tpiedge.wire.tensors import TensorHeader

__all__ = ["StarLeaf", "StarRoot", "node_name"]

_SEND_SLICE_S: Final = 0.05


def node_name(rank: int) -> str:
    """The transport's name of a rank."""
    return f"node-{rank}"


class _Star:
    """What root and leaf share: who they are, how they send, and the short way of an all-reduce."""

    _combine: ClassVar[Combine]

    def __init__(self, endpoint: Endpoint, liveness: Liveness, epoch: int, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.cancelled = False
        self._cancel_requested = False
        self._epoch = epoch
        self._endpoint = endpoint
        self._liveness = liveness
        peers = range(1, size) if rank == 0 else (0,)
        self._ranks = {node_name(peer): peer for peer in peers}
        self._names = tuple(self._ranks)
        self._frames: ReduceFrames | None = None
        self._inbox = Inbox(endpoint, self._ranks, epoch, liveness)

    @property
    def dropped(self) -> int:
        """Messages that came too late."""
        return self._inbox.dropped

    def all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> torch.Tensor:
        own = array_of(partial)
        frames = self._frames_for(own.shape)
        sent = 0
        if contributes and frames.reduce and not self._cancel_requested and not self._inbox.holds:
            sent = frames.reduce(place_of(tag.step, tag.block, tag.chunk), partial.data_ptr())
            if sent == DONE:
                # Neither header has a flag.
                self.cancelled = False
                return partial
        total = self._reduce(own if contributes else None, frames, tag, sent)
        if not contributes:
            return torch.from_numpy(total.copy())
        if total is not own:
            np.copyto(own, total)
        return partial

    def _reduce(self, own: Array | None, frames: ReduceFrames, tag: Tag, sent: int) -> Array:
        """The sum, in memory that may be overwritten by the next all-reduce, or in `own`.

        `own`: None where this rank has no share. `sent`: to how many peers the frame went already.
        """
        raise NotImplementedError

    def _send(self, message: Message, tensors: Sequence[Buffer], what: Doing) -> None:
        self._send_frame(frame_of(message, tensors, TENSOR), what)

    def _send_frame(self, frame: Buffer, what: Doing, sent: int = 0) -> None:
        """To every peer but the first `sent`."""
        names = self._names[sent:]
        while names:
            try:
                self._endpoint.send_frame(frame, names, _SEND_SLICE_S)
                return
            except Unreachable as error:
                self._liveness.check(self._ranks[error.peer], str(what))
                # Those before it have the message.
                names = names[names.index(error.peer) :]

    def _frames_for(self, shape: Shape) -> ReduceFrames:
        """Of the last shape alone: a step has few, and decoding has one."""
        if self._frames is None or self._frames.shape != shape:
            self._frames = self._make_frames(TensorHeader("f32", shape))
            self._frames.reduce_through(self._endpoint, self._combine, {r: n for n, r in self._ranks.items()})
        return self._frames

    def _make_frames(self, header: TensorHeader) -> ReduceFrames:
        raise NotImplementedError


class StarRoot(_Star):
    """Rank 0. Owns nothing: the caller closes `hub`."""

    _combine = Combine.SUM

    def __init__(self, hub: Endpoint, liveness: Liveness, *, epoch: int, size: int) -> None:
        super().__init__(hub, liveness, epoch, 0, size)
        self._leaves = set(range(1, size))

    def rest(self) -> None:
        self._inbox.take_in("the wait for a request")

    def request_cancel(self) -> None:
        self._cancel_requested = True

    def announce(self, plan: StepPlan) -> None:
        self.cancelled = self._cancel_requested = False
        self._inbox.begin(plan.step)
        self._send(plan, (), Doing("plan", f"step {plan.step}"))

    def next_plan(self) -> StepPlan:
        raise InternalError("rank 0 makes the plans")

    def _reduce(self, own: Array | None, frames: ReduceFrames, tag: Tag, sent: int) -> Array:
        what = Doing("all-reduce", tag)
        frames.address(tag)
        if not sent:
            self._sum(own, frames, tag, what)
            self._mark_cancel(frames, tag)
        self._send_frame(frames.frame, what, sent)
        return frames.array

    def _sum(self, own: Array | None, frames: ReduceFrames, tag: Tag, what: Doing) -> None:
        """`own` and the parts of all leaves, in the frame."""
        with np.errstate(over="ignore", invalid="ignore"):
            total = OrderedSum(own, frames.array)
            expected = frames.expected(tag)
            for rank, part, _ in self._inbox.collect(
                Partial, tag, self._leaves, what, frames.shape, expected
            ):
                total.put(rank, part)
            total.finish(what)

    def _mark_cancel(self, frames: ReduceFrames, tag: Tag) -> None:
        """Decide whether the outgoing frame cancels."""
        self.cancelled = self._cancel_requested
        if self.cancelled:
            frames.frame[:FLAT_BYTES] = encode(self._reduced(tag, CANCEL, TensorHeader("f32", frames.shape)))

    def _reduced(self, tag: Tag, flags: int, header: TensorHeader) -> Reduced:
        return Reduced(self._epoch, tag.step, tag.block, tag.chunk, flags, header)

    def _make_frames(self, header: TensorHeader) -> ReduceFrames:
        partials = {rank: Partial(self._epoch, 0, 0, 0, rank, header) for rank in self._leaves}
        return ReduceFrames(header, self._reduced(Tag(0, 0, 0), 0, header), partials)

    def broadcast(self, hidden: torch.Tensor, tag: Tag) -> torch.Tensor:
        array = array_of(hidden)
        message = Hidden(self._epoch, tag.step, tag.chunk, header_of(array))
        self._send(message, (array.data,), Doing("broadcast", tag))
        return hidden

    def gather(self, part: torch.Tensor, tag: Tag) -> list[torch.Tensor] | None:
        parts = [part] * self.size
        for rank, array, _ in self._inbox.collect(Gathered, tag, self._leaves, Doing("gather", tag)):
            assert array is not None  # only a Partial may come without
            parts[rank] = torch.from_numpy(array.copy())
        return parts


class StarLeaf(_Star):
    """Any other rank. Owns nothing: the caller closes `spoke`."""

    _combine = Combine.TAKE

    def __init__(self, spoke: Endpoint, liveness: Liveness, *, epoch: int, rank: int, size: int) -> None:
        super().__init__(spoke, liveness, epoch, rank, size)

    def rest(self) -> None:
        raise InternalError("only rank 0 waits for something else than a plan")

    def request_cancel(self) -> None:
        raise InternalError("only rank 0 cancels")

    def announce(self, plan: StepPlan) -> None:
        raise InternalError(f"only rank 0 makes plans: {plan}")

    def next_plan(self) -> StepPlan:
        plan = self._inbox.next_plan(0)
        self.cancelled = False
        return plan

    def _reduce(self, own: Array | None, frames: ReduceFrames, tag: Tag, sent: int) -> Array:
        what = Doing("all-reduce", tag)
        if own is None:
            self._send(Partial(self._epoch, tag.step, tag.block, tag.chunk, self.rank, None), (), what)
        elif not sent:
            np.copyto(frames.array, own)
            frames.address(tag)
            self._send_frame(frames.frame, what)
        received, answer = self._await(Reduced, tag, frames.shape, what, frames.expected(tag))
        # The expected answer, which is not read, has no flags.
        self.cancelled = isinstance(answer, Reduced) and bool(answer.flags & CANCEL)
        return self._complete(own, received, answer)

    def _make_frames(self, header: TensorHeader) -> ReduceFrames:
        partial = Partial(self._epoch, 0, 0, 0, self.rank, header)
        return ReduceFrames(header, partial, {0: self._answer(header)})

    def _answer(self, header: TensorHeader) -> Reduced:
        """What rank 0 answers with, whatever the place."""
        return Reduced(self._epoch, 0, 0, 0, 0, header)

    def _complete(self, _own: Array | None, received: Array, answer: Message | None) -> Array:
        """The sum from what rank 0 sent; `answer` is its message where it was not the expected one."""
        if isinstance(answer, Reduced) and answer.flags & ADD_OWN:
            raise ProtocolError("node 0 sent its own part where the sum was due: update tpiedge on both")
        return received

    def broadcast(self, hidden: torch.Tensor, tag: Tag) -> torch.Tensor:
        what = Doing("broadcast", tag)
        tag = Tag(tag.step, 0, tag.chunk)
        return torch.from_numpy(self._await(Hidden, tag, tuple(hidden.shape), what)[0].copy())

    def gather(self, part: torch.Tensor, tag: Tag) -> list[torch.Tensor] | None:
        own = array_of(part)
        message = Gathered(self._epoch, tag.step, tag.block, tag.chunk, self.rank, header_of(own))
        self._send(message, (own.data,), Doing("gather", tag))
        return None

    def _await(
        self, kind: type, tag: Tag, shape: Shape, what: Doing, expected: Expected | None = None
    ) -> tuple[Array, Message | None]:
        """The array of rank 0's answer, read-only, and the answer where it is not the expected one."""
        ((_, array, message),) = self._inbox.collect(kind, tag, {0}, what, shape, expected)
        assert array is not None  # only a Partial may come without
        return array, message
