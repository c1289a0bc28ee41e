import re
import signal

import openai
import pytest

from tests.process.command import wait_for
from tests.process.conftest import PROMPT
from tests.process.serving.serving import START_S, Serving, unfinished

LONG = 150
STOPPED = "computing stopped: the master was lost: "
#: Words of the code, which are for those who debug.
INTERNALS = re.compile(r"epoch|\brank\b|PeerLost|\bhub\b", re.IGNORECASE)


@pytest.fixture
def adopted(cluster: Serving, exact):
    """Checks after the test that a new master adopts the workers."""
    cluster.wait_ready(2)
    held = {name: worker.weights() for name, worker in cluster.workers.items()}
    agents = {name: worker.agent for name, worker in cluster.workers.items()}
    epoch = cluster.status()["epoch"]
    yield
    cluster.start_master()
    assert cluster.wait_ready(2)["epoch"] > epoch
    exact(cluster)
    assert not [worker.name for worker in cluster.workers.values() if worker.fetched_again(held[worker.name])]
    assert {name: worker.agent for name, worker in cluster.workers.items()} == agents
    assert all(agent.is_running() for agent in agents.values())


def stream(client: openai.OpenAI, tokens: int):
    return client.completions.create(
        model="demo",
        prompt=PROMPT,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )


@pytest.mark.fault(
    "P7", "the client's connection breaks; the next master adopts the workers, and nothing is shipped again"
)
def test_workers_are_adopted_after_master_is_killed_mid_answer(cluster: Serving, adopted):
    with cluster.client() as client, cluster.crawling():
        answer = stream(client, LONG)
        for _ in range(10):
            next(answer)
        cluster.master.popen.kill()
        with pytest.raises(openai.APIConnectionError):
            list(unfinished(answer))
    assert cluster.master.wait() == -signal.SIGKILL
    for worker in cluster.workers.values():
        wait_for(lambda log=worker.process: STOPPED in log.log, START_S)
    for process in (cluster.master, *(worker.process for worker in cluster.workers.values())):
        assert not INTERNALS.search(process.log), process.log


@pytest.mark.fault("P7", "the answer is finished; exit status 0")
def test_terminated_master_finishes_its_answer_first(cluster: Serving, adopted):
    with cluster.client() as client:
        with cluster.crawling():  # or nothing may be under way any more
            answer = stream(client, LONG)
            for _ in range(10):
                next(answer)
            cluster.master.popen.terminate()
            wait_for(lambda: "finishing running requests" in cluster.master.log, START_S)
        last = list(answer)[-1]
    assert last.choices[0].finish_reason == "length"
    assert cluster.master.wait() == 0
