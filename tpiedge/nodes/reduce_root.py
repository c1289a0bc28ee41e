"""Rank 0 of `tpiedge bench allreduce`: real processes, real links, nothing but all-reduces."""

import gc
import json
import statistics
import time
from collections.abc import Sequence

import torch

from tpiedge.clock import MonotonicClock
from tpiedge.collectives import pair
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.collectives.liveness import DeadlineLiveness
from tpiedge.collectives.star import node_name
from tpiedge.nodes.supervise import Child
from tpiedge.transport.framing import TENSOR
from tpiedge.transport.keys import CurveKeys
from tpiedge.transport.zeromq import ZmqHub
from tpiedge.wire.data import StepPlan

__all__ = ["measure_allreduce"]

_WAIT_S = 60.0
_WARM_UP = 20


def measure_allreduce(nodes: int, payloads: Sequence[int], rounds: int) -> dict[int, float]:
    """Median seconds of one all-reduce of each payload (bytes, f32) among `nodes` processes, this one included."""
    torch.set_num_threads(1)
    # As the leaves do.
    gc.freeze()
    keys = CurveKeys.generate()
    leaf_keys = {rank: CurveKeys.generate() for rank in range(1, nodes)}
    allowed = {pair.public: node_name(rank) for rank, pair in leaf_keys.items()}
    with ZmqHub(
        address="tcp://127.0.0.1:*", keys=keys, name=node_name(0), allowed=allowed, plane=TENSOR, io_threads=2
    ) as hub:
        children = [
            _leaf(rank, nodes, hub.address, keys.public, pair, payloads, rounds)
            for rank, pair in leaf_keys.items()
        ]
        try:
            root = pair.root(hub, DeadlineLiveness(MonotonicClock(), _WAIT_S), epoch=1, size=nodes)
            return {
                payload: _median(root, step, payload, rounds)
                for step, payload in enumerate(payloads, start=1)
            }
        finally:
            for child in children:
                child.stop(time.monotonic() + 1.0)


def _median(root: Communicator, step: int, payload: int, rounds: int) -> float:
    partial = torch.zeros(1, payload // 4)
    root.announce(StepPlan(epoch=1, step=step, segments=(), chunk_tokens=1, tokens=1))
    samples = []
    for block in range(_WARM_UP + rounds):
        started = time.perf_counter()
        root.all_reduce(partial, Tag(step, block, 0))
        samples.append(time.perf_counter() - started)
    return statistics.median(samples[_WARM_UP:])


def _leaf(
    rank: int,
    nodes: int,
    address: str,
    server_key: str,
    keys: CurveKeys,
    payloads: Sequence[int],
    rounds: int,
) -> Child:
    job = {
        "rank": rank,
        "size": nodes,
        "address": address,
        "server_key": server_key,
        "public_key": keys.public,
        "secret_key": keys.secret,
        "elements": [payload // 4 for payload in payloads],
        "rounds": _WARM_UP + rounds,
    }
    return Child("tpiedge.nodes.reduce_leaf", json.dumps(job).encode(), {"OMP_NUM_THREADS": "1"})
