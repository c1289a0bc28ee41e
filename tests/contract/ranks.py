"""Clusters of ranks that sum: every way to do so, over whatever links the network makes."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.contract.networks import Network
from tests.fakes.inprocess import InProcessHub, InProcessPeer, InProcessSpoke
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.collectives.group import COLLECTIVES, Group
from tpiedge.collectives.peer_channel import node_name
from tpiedge.errors import PeerLost, ProtocolError
from tpiedge.wire.control import Shutdown
from tpiedge.wire.data import StepPlan

WAIT_S = 20.0
EPOCH = 1
TAG = Tag(1, 0, 0)
HUB = "star over a hub"
"""Only rank 0 has links."""
WAYS = (HUB, *COLLECTIVES)
LINKS = (
    *(("inprocess", way) for way in WAYS),
    *(("zeromq", way) for way in (HUB, "mesh", "two-shot")),
    *(("zeromq in Python", way) for way in (HUB, "mesh")),
)
"""Every collective over queues. Whatever it sums, a link carries the same frames: over sockets those count in which
all ranks speak with one, or with each other; and the same two where no native call sends and adds."""
each_link = pytest.mark.parametrize(("network", "way"), LINKS, indirect=["network"])
CLUSTERS = (
    *(
        ("inprocess", way, size)
        for way, size in ((HUB, 1), (HUB, 2), (HUB, 4), ("star", 3), ("mesh", 2), ("mesh", 4))
    ),
    *(("inprocess", way, size) for way, size in (("two-shot", 3), ("two-shot", 5))),
    *(("zeromq", way, size) for way, size in ((HUB, 3), ("mesh", 3), ("two-shot", 4))),
    *(("zeromq in Python", way, 3) for way in (HUB, "mesh")),
)
"""(links, collective, ranks): each collective with few ranks and with several, each kind of links as in LINKS."""
EXACT = (HUB, "star", "mesh", "two-shot")
"""These sum in the order of ranks, without brackets."""


class Alive:
    """Everybody lives until the test says otherwise, or takes too long."""

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self.asked = threading.Event()
        self._deadline = time.monotonic() + WAIT_S

    def check(self, rank: int, waiting_for: str) -> None:
        self.asked.set()
        for lost in tuple(self.lost):
            raise PeerLost(lost, waiting_for, "the test said so")
        if time.monotonic() > self._deadline:
            raise PeerLost(rank, waiting_for, "the test takes too long")

    check_idle = check


class Ranks:
    """A cluster of `size` whose all-reduces go one way. `wrap(rank, endpoint)` may put something before an endpoint."""

    def __init__(
        self,
        network: Network,
        way: str,
        size: int,
        *,
        wire: str = "f32",
        wrap: Callable[[int, Any], Any] = lambda _, endpoint: endpoint,
    ) -> None:
        self.way, self.size, self.wire = way, size, wire
        self.alive = [Alive() for _ in range(size)]
        self.bare = self._endpoints(network) if size > 1 else []
        self.endpoints = [wrap(rank, endpoint) for rank, endpoint in enumerate(self.bare)]
        self.groups = [self._group(rank) for rank in range(size)] if size > 1 else []
        self.all: Sequence[Communicator] = self.groups or [Communicator()]

    @property
    def name(self) -> str:
        return "star" if self.way == HUB else self.way

    def plan(self, step: int = 1, **changes: Any) -> StepPlan:
        fields = {"collective": self.name, "bulk_collective": self.name, "wire": self.wire, **changes}
        return StepPlan(EPOCH, step, (), 1, 1, **fields)

    def begin(self, one: Communicator, step: int = 1, **changes: Any) -> None:
        if one.rank == 0:
            one.announce(self.plan(step, **changes))
        else:
            assert one.next_plan() == self.plan(step, **changes)

    def begun(self, **changes: Any) -> "Ranks":
        self.run(lambda one: self.begin(one, **changes))
        return self

    def meet(self) -> "Ranks":
        """Waits until all links are up; they stay so although no rank reads."""
        for rank, endpoint in enumerate(self.bare):
            for lower in range(rank):
                endpoint.send(Shutdown(0), None, node_name(lower), WAIT_S)
                assert self.bare[lower].recv(WAIT_S) is not None
        return self

    def run(self, work: Callable[[Any], Any]) -> list[Any]:
        results = self.outcomes(work)
        # The rank that failed first is the cause of the others' losses.
        failures = [result for result in results if isinstance(result, Exception)]
        for failure in sorted(failures, key=lambda error: isinstance(error, PeerLost)):
            raise failure
        return results

    def outcomes(self, work: Callable[[Any], Any]) -> list[Any]:
        """Returns results and errors of `work`; the other ranks learn of an error as a loss of its rank."""

        def carry_out(one: Communicator) -> Any:
            try:
                return work(one)
            except PeerLost as error:
                return error  # the others find out by themselves
            except Exception as error:
                self.lose(one.rank)
                return error

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(carry_out, self.all))

    def refusals(self, given: Callable[[int], tuple[torch.Tensor, bool]]) -> list[Any]:
        """Outcomes of an all-reduce of what is `given` by each rank, and whether it contributes, where rank 0 may
        refuse it."""

        def work(one: Any) -> Any:
            summand, contributes = given(one.rank)
            try:
                return one.all_reduce(summand, TAG, contributes=contributes)
            except ProtocolError as error:
                if one.rank == 0:
                    raise
                return error  # has sent everything: no rank waits for it

        return self.outcomes(work)

    def lose(self, rank: int) -> None:
        for alive in self.alive:
            alive.lost.add(rank)
        for endpoint in self.bare:
            if isinstance(endpoint, InProcessHub | InProcessSpoke | InProcessPeer):
                endpoint.wake()

    def reduce(self, block: int = 0, *, tokens: int = 3, hidden: int = 96) -> list[torch.Tensor]:
        tag = Tag(1, block, 0)
        return self.run(lambda one: one.all_reduce(part(one.rank, tokens, hidden), tag))

    def _endpoints(self, network: Network) -> list[Any]:
        return list(network.star(self.size) if self.way == HUB else network.mesh(self.size))

    def _group(self, rank: int) -> Group:
        return Group(
            self.endpoints[rank],
            self.alive[rank],
            epoch=EPOCH,
            rank=rank,
            size=self.size,
            linked=self.way != HUB,
        )


def part(rank: int, tokens: int = 3, hidden: int = 96, block: int = 0) -> torch.Tensor:
    """A part whose values differ so much in magnitude that the order of summation shows."""
    generator = torch.Generator().manual_seed(100 * block + rank)
    return torch.randn(tokens, hidden, generator=generator) * 10.0 ** (rank * 3 % 7)


def parts(size: int, tokens: int = 3, hidden: int = 96) -> list[torch.Tensor]:
    return [part(rank, tokens, hidden) for rank in range(size)]


def total(given: Sequence[torch.Tensor]) -> torch.Tensor:
    summed = given[0].clone()
    for one in given[1:]:
        summed = summed + one
    return summed


def same(tensors: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(one.view(torch.int32), tensors[0].view(torch.int32)) for one in tensors)
