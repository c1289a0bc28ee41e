"""A process that does nothing but all-reduces: `tpiedge bench allreduce` starts it for every rank but 0."""

import gc
import json
import os
from contextlib import ExitStack
from typing import NoReturn

import torch

from tpiedge.clock import MonotonicClock
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.collectives.courier import node_name
from tpiedge.collectives.group import Group
from tpiedge.collectives.liveness import DeadlineLiveness
from tpiedge.lifeline import guard
from tpiedge.nodes.link_survey import LinkSurvey
from tpiedge.nodes.process import Lines
from tpiedge.transport.context import ZmqContext
from tpiedge.transport.framing import TENSOR
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.mesh import ZmqMesh
from tpiedge.transport.zeromq import ZmqHub, ZmqSpoke
from tpiedge.wire.data import StepPlan

__all__ = ["EPOCH", "WAIT_S", "main"]

EPOCH = 1
WAIT_S = 60.0


def main() -> NoReturn:
    """The first line of standard input says who this is; the answer, where it listens. The second, where others do."""
    lines = Lines()
    guard(lambda: os._exit(0), on_bytes=lines.feed)
    job = json.loads(lines.next())
    torch.set_num_threads(1)
    rank, size, keys = job["rank"], job["size"], CurveKeys(job["public_key"], job["secret_key"])
    peer_keys = {int(peer): key for peer, key in job["peer_keys"].items()}
    with ExitStack() as resources:
        context = ZmqContext(2)
        resources.callback(context.close)
        hub = None
        if rank < size - 1:
            allowed = {key: node_name(peer) for peer, key in peer_keys.items() if peer > rank}
            address = f"tcp://{job['host']}:*"
            hub = ZmqHub(address, keys, node_name(rank), allowed, plane=TENSOR, context=context)
            resources.enter_context(hub)
        print(json.dumps({"address": hub.address if hub else ""}), flush=True)  # noqa: T201 (the report)
        spokes = {}
        for peer, address in json.loads(lines.next())["addresses"].items():
            spoke = ZmqSpoke(
                address,
                peer_keys[int(peer)],
                keys,
                node_name(rank),
                hub_name=node_name(int(peer)),
                plane=TENSOR,
                context=context,
            )
            spokes[int(peer)] = resources.enter_context(spoke)
        ends = {node_name(peer): spoke for peer, spoke in spokes.items()}
        endpoint = spokes[0] if size == 2 else ZmqMesh(node_name(rank), hub, ends)
        clock = MonotonicClock()
        liveness = DeadlineLiveness(clock, WAIT_S)
        group = Group(endpoint, liveness, epoch=EPOCH, rank=rank, size=size, linked=True)
        survey = LinkSurvey(endpoint, DeadlineLiveness(clock, WAIT_S), clock, EPOCH, rank, size)
        # What exists by now stays: the collector need not look at it again between two all-reduces.
        gc.freeze()
        while True:  # the lifeline ends the process
            plan = group.next_plan()
            if plan.tokens:
                _take_part(group, plan)
            else:
                survey.run(spokes)


def _take_part(group: Communicator, plan: StepPlan) -> None:
    """`chunk_tokens` all-reduces of `tokens` numbers each."""
    # Zeros stay zeros, however often the sum takes the place of the partial.
    partial = torch.zeros(1, plan.tokens)
    for block in range(plan.chunk_tokens):
        group.all_reduce(partial, Tag(plan.step, block, 0))


if __name__ == "__main__":
    main()
