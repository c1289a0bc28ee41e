"""Faults at random, one or two at once, beside an answer: its text is that without faults, or, where the master itself
was killed, the beginning of it and an error; afterwards the cluster serves exactly. Each number is a draw; these are as
many as one likes:

    NEMESIS=1:300 .venv/bin/python -m pytest tests/process/serving/test_nemesis.py
"""

import os
import random
import threading
from collections.abc import Callable

import pytest

from tests.process.serving.machines import Worker
from tests.process.serving.serving import Serving
from tests.process.serving.test_faults import CRASHED_NODE, FAULTS, FROZEN_NODE, Fault

DRAWS = range(*map(int, os.environ.get("NEMESIS", "20:24").split(":")))
_LONG = 400
#: A fault comes at any time of an answer, or soon after it.
_LATEST_S = 2.0
_ANSWER_S = 90.0


def kill_master(cluster: Serving, victim: Worker) -> Callable[[], object]:
    master = cluster.master

    def harm() -> None:
        master.popen.kill()
        master.wait()

    return harm


def start_master(cluster: Serving, victim: Worker) -> None:
    cluster.start_master()


OF_THE_MASTER = {
    "rank 0 killed": FAULTS["rank 0 killed"],
    "master killed": Fault(kill_master, start_master, ""),
}
OF_A_WORKER = {
    **{name: FAULTS[name] for name in ("agent killed", "node killed", "worker frozen")},
    "node crashed": CRASHED_NODE,
    "node frozen": FROZEN_NODE,
}


def draw(number: int) -> tuple[str, list[Fault], float]:
    """The worker, what happens to it, then to the master's machine, or one of these, and after how long."""
    dice = random.Random(number)
    both = [OF_A_WORKER[dice.choice(list(OF_A_WORKER))], OF_THE_MASTER[dice.choice(list(OF_THE_MASTER))]]
    faults = dice.choice((both, both[:1], both[1:]))
    return dice.choice(("ann", "bob")), faults, dice.uniform(0.0, _LATEST_S)


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving]) -> Serving:
    cluster = clusters("--min-workers", 2)
    cluster.start_master()
    cluster.start_worker("ann")
    cluster.start_worker("bob")
    return cluster


@pytest.fixture(scope="module")
def whole(cluster: Serving) -> str:
    """The answer without faults."""
    cluster.wait_ready(3)
    return cluster.whole("Once", _LONG)


@pytest.mark.fault("P19", "of processes: the answer is exact; each draw can be repeated")
@pytest.mark.parametrize("number", DRAWS)
def test_faults_at_random(
    cluster: Serving, whole: str, exact: Callable[[Serving], None], number: int
) -> None:
    name, faults, when_s = draw(number)
    victim = cluster.workers[name]
    cluster.wait_ready(3)
    with cluster.streaming("Once", _LONG) as stream:
        threading.Event().wait(when_s)  # the moment belongs to the fault
        for fault in faults:
            fault.harm(cluster, victim)
        for fault in reversed(faults):
            fault.heal(cluster, victim)
        stream.join(_ANSWER_S)
    if OF_THE_MASTER["master killed"] in faults:
        assert whole.startswith(stream.text)
        assert stream.error is not None or stream.text == whole
    else:
        assert stream.error is None
        assert stream.text == whole
    cluster.wait_ready(3)
    exact(cluster)
