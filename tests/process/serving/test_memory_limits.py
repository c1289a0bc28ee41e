"""A machine gets less memory while it is used, or has less than it offered: the plan gives it less, and it is not
tried again and again. Linux, root."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.process.command import COMMAND, gone, wait_for
from tests.process.conftest import PROMPT, TOKENS
from tests.process.faulty import Fault
from tests.process.serving.conftest import SLOW
from tests.process.serving.machines import Worker
from tests.process.serving.serving import START_S, Serving, node_of, words_of_loss
from tpiedge.lab.memory_group import ENTER, MemoryGroup

LONG = 120
OUT_OF_MEMORY = r"it ran out of memory \(killed by the system's OOM killer\)"
#: Of a KV cache of KV_TOKENS, one head takes more than what a node has beside its program once it has LOW bytes.
KV_TOKENS = 65536
ENOUGH = 600 << 20
LOW = 400 << 20
#: What another program takes at a time while there is room.
STEP = 20 << 20
#: For each line that it gets it takes so many bytes, in a process of its own. Any of them is ended before a master or
#: an agent, and after a node.
_TAKE = """
import os, signal, sys
from tpiedge.lifeline import raise_oom_score

raise_oom_score(100)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    told, tells = os.pipe()
    if not os.fork():
        taken = b"x" * int(line)
        os.write(tells, b"x")
        signal.pause()
    os.close(tells)
    os.read(told, 1)
    os.close(told)
    print(flush=True)
os.killpg(0, signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def cluster(clusters) -> Serving:
    options = ("--min-workers", 1, "--precision", "q4", "--speculate", "off", "--kv-tokens", KV_TOKENS)
    cluster = clusters(*options)
    cluster.start_master()
    cluster.start_worker("bob", bytes_per_s=SLOW)
    return cluster


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Fault]:
    """A fault that holds one machine: an answer stands still, while heartbeats go on."""
    fault = Fault("held", tmp_path / "held")
    yield fault
    fault.end()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Fault]:
    """A fault that slows one machine down: an answer lasts, while heartbeats go on."""
    fault = Fault("slow", tmp_path / "slow")
    yield fault
    fault.end()


@pytest.fixture
def start_victim(
    cluster: Serving, group: MemoryGroup, request: pytest.FixtureRequest
) -> Iterator[Callable[[Fault], Worker]]:
    """Starts a worker all of whose processes are in the group."""
    name = request.node.name

    def start(fault: Fault) -> Worker:
        cluster.wait_ready(2)
        memory, program = ("--memory", f"{ENOUGH >> 20}MiB"), within(group, *fault.program)
        worker = cluster.start_worker(name, *memory, bytes_per_s=SLOW, program=program)
        cluster.wait_ready(3)
        return worker

    yield start
    cluster.workers.pop(name).process.end()


def within(group: MemoryGroup, *program: object) -> tuple[object, ...]:
    return "sh", "-c", ENTER, group.members_file, *program


@pytest.mark.fault(
    "P2", "less memory in the middle of an answer: a smaller part, no loss; the answer is exact"
)
def test_lowered_memory_limit_shrinks_the_share_mid_answer(
    cluster: Serving, group: MemoryGroup, start_victim: Callable[[Fault], Worker], slow: Fault
):
    victim = start_victim(slow)
    whole, before = cluster.whole(PROMPT, LONG), cluster.status()

    def has_less(now: dict) -> bool:
        later = now["ready"] and now["epoch"] != before["epoch"]
        return later and node_of(now, victim.name)["planned_bytes"] <= LOW

    assert node_of(before, victim.name)["planned_bytes"] > LOW
    with cluster.streaming(PROMPT, LONG) as stream:
        slow.begin()
        said = len(cluster.master.log)
        group.limit(LOW)
        cluster.wait_until(has_less)
        slow.end()
        stream.join(START_S)
    assert (stream.error, stream.text) == (None, whole)
    assert f"it offers {LOW / 1e6:.1f} MB (before: {ENOUGH / 1e6:.1f} MB)" in victim.log
    assert "stopped serving" not in cluster.master.log[said:]
    assert group.use().oom_kills == 0


@contextlib.contextmanager
def memory_taken(group: MemoryGroup, node: psutil.Process) -> Iterator[None]:
    """Takes ever more memory of the group until the node has ended. Page cache is taken at once: a group that reclaims
    for long stands still, and the node would count as frozen."""
    command = ["sh", "-c", ENTER, str(group.members_file), sys.executable, "-c", _TAKE]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        limit = group.limit_bytes
        assert limit is not None
        while not gone(node):
            room = limit - group.used_bytes
            nbytes = STEP if room > 2 * STEP else limit - group.held_bytes + STEP
            other.stdin.write(b"%d\n" % nbytes)
            other.stdin.flush()
            assert other.stdout.readline()
        yield


@pytest.mark.fault(
    "P2", "called so; where no limit has changed less is offered for a while: there is no loop"
)
def test_worker_that_ran_out_of_memory_offers_less(
    cluster: Serving, group: MemoryGroup, start_victim: Callable[[Fault], Worker], held: Fault
):
    victim = start_victim(held)
    whole = cluster.whole(PROMPT, LONG)
    group.limit(ENOUGH)
    agent, rank = victim.agent, cluster.node(victim.name)["rank"]
    with cluster.streaming(PROMPT, LONG) as stream:
        with held.holding(), memory_taken(group, victim.node):
            pass
        status = cluster.wait_ready(2)  # before that minute is over
        stream.join(START_S)
    assert (stream.error, stream.text) == (None, whole)
    assert re.search(words_of_loss(rank, OUT_OF_MEMORY), cluster.master.log)
    assert re.search(
        r"ran out of memory with .* planned for it: it offers .* for the next 1 min 0 s", victim.log
    )
    why = node_of(status, victim.name)["why"]
    assert "it ran out of memory" in why or re.match(
        "it offers .*, but the least that works for demo is", why
    )
    assert victim.agent == agent
    wait_for(lambda: whole.startswith(cluster.ask(PROMPT, TOKENS)), START_S)


@pytest.mark.fault("P15", "a worker that is given more than its limit offers its limit, and says so")
def test_worker_offers_no_more_memory_than_its_limit(cluster: Serving, group: MemoryGroup):
    group.limit(ENOUGH)
    cluster.wait_ready(2)
    program = within(group, COMMAND)
    worker = cluster.start_worker("generous", "--memory", "2TB", bytes_per_s=SLOW, program=program)
    assert node_of(cluster.wait_ready(3), worker.name)["memory_bytes"] == ENOUGH
    most = f"{ENOUGH / 1e6:.1f} MB"
    words = f"--memory gives 2.0 TB, but the limit of this machine or of its control group is {most}"
    wait_for(lambda: words in worker.log, START_S)
    cluster.workers.pop(worker.name).process.end()
