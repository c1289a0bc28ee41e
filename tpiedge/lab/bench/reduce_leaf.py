"""A process that does nothing but all-reduces: `tpiedge bench allreduce` starts it for every rank but 0."""

import gc
import json
import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any, NoReturn

import torch

from tpiedge.clock import MonotonicClock
from tpiedge.collectives.communicator import Communicator, Tag
from tpiedge.collectives.group import Group
from tpiedge.collectives.local import DeadlineLiveness
from tpiedge.lifeline import guard
from tpiedge.node.data_plane import TensorLinks
from tpiedge.node.link_survey import LinkSurvey
from tpiedge.node.process import Lines
from tpiedge.transport.endpoint import Endpoint
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.data import StepPlan

EPOCH = 1
WAIT_S = 60.0
BEGUN, ENDED = 0, 1


def main() -> NoReturn:
    """The first line of standard input says who this is; the answer, where it listens. The second, where others do."""
    lines = Lines()
    guard(lambda: os._exit(0), on_bytes=lines.feed)
    job = json.loads(lines.next())
    torch.set_num_threads(1)
    with ExitStack() as resources:
        endpoint, reached = _linked(job, lines, resources)
        _serve(endpoint, job["rank"], job["size"], reached)


def _linked(job: Mapping[str, Any], lines: Lines, resources: ExitStack) -> tuple[Endpoint, Collection[int]]:
    """The endpoint of all links, and the ranks that this one connected to."""
    rank, keys = job["rank"], CurveKeys(job["public_key"], job["secret_key"])
    peer_keys = {int(peer): key for peer, key in job["peer_keys"].items()}
    links = TensorLinks(rank, keys, peer_keys, resources)
    listens = rank < job["size"] - 1
    address = links.listen(f"tcp://{job['host']}:*").address if listens else ""
    print(json.dumps({"address": address}), flush=True)  # noqa: T201 (the report)
    addresses = json.loads(lines.next())["addresses"]
    spokes = {int(peer): links.connect(int(peer), there) for peer, there in addresses.items()}
    return links.joined(spokes), spokes.keys()


def _serve(endpoint: Endpoint, rank: int, size: int, reached: Collection[int]) -> NoReturn:
    """Takes part until the lifeline ends the process."""
    clock = MonotonicClock()
    group = Group(endpoint, DeadlineLiveness(clock, WAIT_S), epoch=EPOCH, rank=rank, size=size, linked=True)
    survey = LinkSurvey(endpoint, DeadlineLiveness(clock, WAIT_S), clock, EPOCH, rank, size)
    # What exists by now stays: the collector need not look at it again between two all-reduces.
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
    """Returns at rank 0 once all ranks have called it. A rank that is still in the step before drops what is of the
    survey, and so rank 0's first probe; one that is still in its survey drops what is not of the survey, and so the
    first part of another rank, which began the next step before it."""
    group.gather(torch.zeros(1, 1), Tag(step, moment, 0))


def _take_part(group: Communicator, plan: StepPlan) -> None:
    """`chunk_tokens` all-reduces of `tokens` numbers each."""
    # Zeros stay zeros, however often the sum takes the place of the partial.
    partial = torch.zeros(1, plan.tokens)
    for block in range(plan.chunk_tokens):
        group.all_reduce(partial, Tag(plan.step, block, 0))


if __name__ == "__main__":
    main()
