"""A process that does nothing but all-reduces: `tpiedge bench allreduce` starts it for every rank but 0."""

import gc
import json
import os
import sys

import torch

from tpiedge.clock import MonotonicClock
from tpiedge.collectives import pair
from tpiedge.collectives.communicator import Tag
from tpiedge.collectives.liveness import DeadlineLiveness
from tpiedge.collectives.star import node_name
from tpiedge.lifeline import guard
from tpiedge.transport.framing import TENSOR
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqSpoke

__all__ = ["main"]

_WAIT_S = 10.0


def main() -> int:
    """The first line of standard input says who this is and what to do."""
    job = json.loads(sys.stdin.buffer.readline())
    guard(lambda: os._exit(0))
    torch.set_num_threads(1)
    # What exists by now stays: the collector need not look at it again between two all-reduces.
    gc.freeze()
    keys = CurveKeys(job["public_key"], job["secret_key"])
    with ZmqSpoke(
        address=job["address"],
        server_key=job["server_key"],
        keys=keys,
        name=node_name(job["rank"]),
        hub_name=node_name(0),
        plane=TENSOR,
    ) as spoke:
        liveness = DeadlineLiveness(MonotonicClock(), _WAIT_S)
        communicator = pair.leaf(spoke, liveness, epoch=1, rank=job["rank"], size=job["size"])
        for step, elements in enumerate(job["elements"], start=1):
            # Zeros stay zeros, however often the sum takes the place of the partial.
            partial = torch.zeros(1, elements)
            communicator.next_plan()
            for block in range(job["rounds"]):
                communicator.all_reduce(partial, Tag(step, block, 0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
