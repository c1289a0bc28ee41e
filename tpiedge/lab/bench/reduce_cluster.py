"""Runs processes that only all-reduce. The bench is rank 0. The other ranks run this module."""

import gc
import json
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn, Self

import torch

from tpiedge.clock import MonotonicClock
from tpiedge.collectives.communicator import Communicator, DeadlineLiveness, Tag
from tpiedge.collectives.group import Group
from tpiedge.collectives.peer_channel import node_name
from tpiedge.errors import PeerError
from tpiedge.launch.child import Child, Place
from tpiedge.lifeline import guard
from tpiedge.node.data_plane import TensorLinks
from tpiedge.node.link_survey import LinkSurvey
from tpiedge.planner.network import NetworkFacts
from tpiedge.transport.endpoint import TENSOR, Endpoint
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.mesh import ZmqMesh
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.data import StepPlan
from tpiedge.wire.fields import CollectiveName, WirePrecision

EPOCH = 1
WAIT_S = 60.0
BEGUN, ENDED = 0, 1


def main() -> NoReturn:
    """Reads a job, prints this rank's address, reads lower ranks' addresses, and then serves."""
    job = json.loads(sys.stdin.buffer.readline())
    torch.set_num_threads(1)
    with ExitStack() as resources:
        endpoint, reached = _linked(job, resources)
        guard(lambda: os._exit(0))
        _serve(endpoint, job["rank"], job["size"], reached)


def _linked(job: Mapping[str, Any], resources: ExitStack) -> tuple[Endpoint, Collection[int]]:
    rank, keys = job["rank"], CurveKeys(job["public_key"], job["secret_key"])
    peer_keys = {int(peer): key for peer, key in job["peer_keys"].items()}
    links = TensorLinks(rank, keys, peer_keys, resources)
    listens = rank < job["size"] - 1
    address = links.listen(f"tcp://{job['host']}:*").address if listens else ""
    print(json.dumps({"address": address}), flush=True)  # noqa: T201 (the report)
    addresses = json.loads(sys.stdin.buffer.readline())["addresses"]
    spokes = {int(peer): links.connect(int(peer), there) for peer, there in addresses.items()}
    return links.joined(spokes), spokes.keys()


def _serve(endpoint: Endpoint, rank: int, size: int, reached: Collection[int]) -> NoReturn:
    clock = MonotonicClock()
    group = Group(endpoint, DeadlineLiveness(clock, WAIT_S), epoch=EPOCH, rank=rank, size=size, linked=True)
    survey = LinkSurvey(endpoint, DeadlineLiveness(clock, WAIT_S), clock, EPOCH, rank, size)
    # Objects that exist by now stay: the collector need not visit them between two all-reduces.
    gc.freeze()
    while True:
        plan = group.next_plan()
        assert isinstance(plan, StepPlan)
        if plan.tokens:
            _take_part(group, plan)
        else:
            confirm(group, plan.step, BEGUN)
            survey.run(reached)
            confirm(group, plan.step, ENDED)


def confirm(group: Communicator, step: int, moment: int) -> None:
    """Makes rank 0 wait until every other rank has also called this. Called before and after the links are measured."""
    # Probes and parts of a step must not meet.
    for rank in range(1, group.size) if group.rank == 0 else (group.rank,):
        group.send_up(torch.zeros(1, 1), rank, Tag(step, moment, 0))


def _take_part(group: Communicator, plan: StepPlan) -> None:
    # Zeros stay zeros, however often the sum takes the place of the partial.
    partial = torch.zeros(1, plan.tokens)
    for block in range(plan.chunk_tokens):
        group.all_reduce(partial, Tag(plan.step, block, 0))


_START_S = 60.0
_WARM_UP = 20


class ReduceCluster:
    """Two or more processes that all-reduce. This process is rank 0. The calling thread must be in the network
    of `places[0]`."""

    def __init__(self, nodes: int, places: Sequence[Place] = ()) -> None:
        self.size = nodes
        self._places = tuple(places) or (Place(),) * nodes
        self._keys = [CurveKeys.generate() for _ in range(nodes)]
        self._resources = ExitStack()
        self._step = 0

    def __enter__(self) -> Self:
        torch.set_num_threads(1)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        # The other ranks do the same.
        gc.freeze()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._resources.close()

    def measure(
        self, collective: CollectiveName, payload_bytes: int, rounds: int, wire: WirePrecision = "f32"
    ) -> list[float]:
        """Returns the seconds of each of `rounds` all-reduces of `payload_bytes` of f32. Raises PeerLost."""
        self._step += 1
        elements = payload_bytes // 4
        plan = StepPlan(
            EPOCH,
            self._step,
            (),
            _WARM_UP + rounds,
            elements,
            collective=collective,
            bulk_collective=collective,
            wire=wire,
        )
        self._group.announce(plan)
        partial = torch.zeros(1, elements)
        samples = []
        for block in range(_WARM_UP + rounds):
            started = time.perf_counter()
            self._group.all_reduce(partial, Tag(self._step, block, 0))
            samples.append(time.perf_counter() - started)
        return samples[_WARM_UP:]

    def survey(self) -> NetworkFacts:
        self._step += 1
        self._group.announce(StepPlan(EPOCH, self._step, (), 1, 0))
        confirm(self._group, self._step, BEGUN)
        facts = self._survey()
        confirm(self._group, self._step, ENDED)
        return facts

    def _start(self) -> None:
        allowed = {keys.public: node_name(rank) for rank, keys in enumerate(self._keys) if rank}
        address = f"tcp://{self._places[0].host}:*"
        hub = ZmqHub(address, self._keys[0], node_name(0), allowed, plane=TENSOR, io_threads=2)
        self._resources.enter_context(hub)
        children = {rank: self._child(rank) for rank in range(1, self.size)}
        addresses = {0: hub.address}
        deadline = time.monotonic() + _START_S
        for rank, child in children.items():
            report = child.read_report(deadline)
            if report is None:
                raise PeerError(f"rank {rank} of the benchmark did not start within {_START_S:.0f} s")
            addresses[rank] = json.loads(report)["address"]
        for rank, child in children.items():
            lower = {str(peer): addresses[peer] for peer in range(rank)}
            child.send_line(json.dumps({"addresses": lower}).encode())
        self._mesh = ZmqMesh(node_name(0), hub, {})
        liveness = DeadlineLiveness(MonotonicClock(), WAIT_S)
        self._group = Group(self._mesh, liveness, epoch=EPOCH, rank=0, size=self.size, linked=True)

    def _survey(self) -> NetworkFacts:
        clock = MonotonicClock()
        survey = LinkSurvey(self._mesh, DeadlineLiveness(clock, WAIT_S), clock, EPOCH, 0, self.size)
        facts = survey.run(())
        assert facts is not None  # as on any rank 0
        return facts

    def _child(self, rank: int) -> Child:
        keys, place = self._keys[rank], self._places[rank]
        job = {
            "rank": rank,
            "size": self.size,
            "host": place.host,
            "public_key": keys.public,
            "secret_key": keys.secret,
            "peer_keys": {str(peer): peer_keys.public for peer, peer_keys in enumerate(self._keys)},
        }
        environment = {"OMP_NUM_THREADS": "1"}
        module, line = __name__, json.dumps(job).encode()
        child = Child(module, line, environment, reports=True, prefix=place.prefix)
        self._resources.callback(lambda: child.stop(time.monotonic() + 1.0))
        return child


if __name__ == "__main__":
    main()
