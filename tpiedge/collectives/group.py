"""Implements the communicator for several ranks."""

from collections import Counter
from collections.abc import Mapping, Set
from typing import Final

import numpy as np
import torch

from tpiedge.collectives.codec import encode_array, header_of
from tpiedge.collectives.communicator import Communicator, Doing, Liveness, Tag
from tpiedge.collectives.direct import AllReduce, Mesh, Star, TwoShot
from tpiedge.collectives.fast import FastPath
from tpiedge.collectives.peer_channel import PeerChannel
from tpiedge.collectives.summation import SUMMABLE, Summable, array_of
from tpiedge.errors import InternalError, ProtocolError
from tpiedge.transport.endpoint import Endpoint
from tpiedge.wire import fields
from tpiedge.wire.data import Gathered, Hidden, PageOrders, StepPlan

COLLECTIVES: Final[Mapping[str, type[AllReduce]]] = {"star": Star, "mesh": Mesh, "two-shot": TwoShot}


class Group(Communicator):
    """The caller closes `endpoint`. `linked` means that every rank has a link to every other."""

    def __init__(
        self,
        endpoint: Endpoint,
        liveness: Liveness,
        *,
        epoch: int,
        rank: int,
        size: int,
        linked: bool = False,
    ) -> None:
        super().__init__()
        self.rank = rank
        self.size = size
        #: How many all-reduces each collective did.
        self.counts: Counter[str] = Counter()
        self._epoch = epoch
        self._linked = linked
        self._channel = PeerChannel(endpoint, liveness, epoch=epoch, rank=rank, size=size)
        self._fast = FastPath(self._channel)
        self._plan = StepPlan(epoch, 0, (), 1, 1)
        self._jobs: dict[Tag, AllReduce] = {}
        self._rely(COLLECTIVES.keys())  # until the first plan names its own

    @property
    def dropped(self) -> int:
        return self._channel.dropped

    def announce(self, plan: StepPlan | PageOrders) -> None:
        self._begin(plan)
        self._channel.start_step(plan.step)
        self._channel.send(plan, None, self._channel.peers, Doing("plan", f"step {plan.step}"))

    def next_plan(self) -> StepPlan | PageOrders:
        plan = self._channel.next_plan()
        self._begin(plan)
        return plan

    def poll(self) -> None:
        self._channel.take_in("the wait for a request")

    @property
    def _cancel_requested(self) -> bool:
        return self._cancelled_step == self._plan.step > 0

    def _rely(self, collectives: Set[str]) -> None:
        by_star = not self._linked or collectives == {"star"}
        self._channel.needed = {0} if self.rank and by_star else set(self._channel.peers)

    def _begin(self, plan: StepPlan | PageOrders) -> None:
        self.cancelled = False
        # A cancelled step's all-reduces end here: their messages are too late.
        self._jobs.clear()
        if isinstance(plan, PageOrders):
            return  # nothing is summed
        self._plan = plan
        collectives = {plan.collective, plan.bulk_collective}
        for name in collectives:
            if name not in COLLECTIVES:
                raise ProtocolError(f"node 0 asks for the collective {name}, which this node does not have")
            if name != "star" and not self._linked:
                raise ProtocolError(f"node 0 asks for the collective {name}, but not all nodes are linked")
        self._rely(collectives)

    def all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> torch.Tensor:
        own = array_of(partial, SUMMABLE)
        name, job = self._job(own, tag, contributes)
        if contributes and not self._cancel_requested and not self._channel.holds and not self._jobs:
            job.sent, job.total = self._fast.reduce(name, job.wire, own, tag)
            if job.total is own:
                # No message of the native call has a flag.
                self.cancelled = False
                self.counts[name] += 1
                return partial
        # Messages already sent have no flag: a later cancel goes with the next all-reduce.
        job.cancel = self._cancel_requested and not job.sent
        self._start(name, job)
        return self._result(tag, partial if contributes else None)

    def begin_all_reduce(self, partial: torch.Tensor, tag: Tag, *, contributes: bool = True) -> None:
        name, job = self._job(array_of(partial, SUMMABLE), tag, contributes)
        job.cancel = self._cancel_requested
        self._start(name, job)

    def finish_all_reduce(self, tag: Tag) -> torch.Tensor:
        return self._result(tag, None)

    def _job(self, own: Summable, tag: Tag, contributes: bool) -> tuple[fields.CollectiveName, AllReduce]:
        plan = self._plan
        # Counted as narrow, so that all ranks choose the same.
        name = plan.collective if 4 * own.size <= plan.small_bytes else plan.bulk_collective
        wire: fields.SummandPrecision = plan.wire
        if own.dtype.kind != "f":
            if wire != "f32":
                raise InternalError(f"integers are summed as they are, and not rounded to {wire}")
            wire = "i32"
        return name, COLLECTIVES[name](self._channel, tag, own.shape, own if contributes else None, wire)

    def _start(self, name: fields.CollectiveName, job: AllReduce) -> None:
        job.start()
        # The messages of earlier all-reduces had the time of a computation to arrive.
        for earlier in self._jobs.values():
            earlier.advance()
        self._jobs[job.tag] = job
        self.counts[name] += 1

    def _result(self, tag: Tag, into: torch.Tensor | None) -> torch.Tensor:
        job = self._jobs[tag]
        job.advance()
        total = job.finish()
        del self._jobs[tag]
        self.cancelled = job.cancel
        if into is not None and (place := into.numpy()).dtype == total.dtype:
            np.copyto(place, total)
            return into
        return torch.from_numpy(total if total.flags.writeable else total.copy())

    def broadcast(self, hidden: torch.Tensor, tag: Tag) -> torch.Tensor:
        what = Doing("broadcast", tag)
        if self.rank != 0:
            return self._received(Hidden, Tag(tag.step, 0, tag.chunk), 0, what, hidden)
        array = array_of(hidden)
        # Embeddings of a bf16 model need no more than bf16.
        wire: fields.WirePrecision = "f32" if (array.view(np.uint32) & np.uint32(0xFFFF)).any() else "bf16"
        message = Hidden(self._epoch, tag.step, tag.chunk, header_of(wire, array.shape))
        self._channel.send(message, encode_array(wire, array), self._channel.peers, what)
        return hidden

    def send_up(self, part: torch.Tensor, rank: int, tag: Tag) -> torch.Tensor | None:
        what = Doing("sending to node 0", tag)
        if self.rank == rank:
            own = array_of(part)
            message = Gathered(self._epoch, *tag, self.rank, header_of("f32", own.shape))
            self._channel.send(message, own.data, (0,), what)
        return None if self.rank else self._received(Gathered, tag, rank, what, part)

    def send_down(self, part: torch.Tensor, rank: int, tag: Tag) -> torch.Tensor | None:
        what = Doing(f"sending to node {rank}", tag)
        if self.rank == 0:
            own = array_of(part)
            message = Hidden(self._epoch, tag.step, tag.chunk, header_of("f32", own.shape))
            self._channel.send(message, own.data, (rank,), what)
        if self.rank == rank:
            return self._received(Hidden, Tag(tag.step, 0, tag.chunk), 0, what, part)
        return None

    def _received(self, kind: type, tag: Tag, rank: int, what: Doing, shaped: torch.Tensor) -> torch.Tensor:
        ((_, rows, _),) = self._channel.collect(kind, tag, (rank,), what, tuple(shaped.shape))
        assert rows is not None  # only a part may come without a tensor
        return torch.from_numpy(rows.copy())
