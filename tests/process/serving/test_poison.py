"""A prompt that kills the node of every worker that computes it: it alone fails, and the cluster serves on."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.process.faulty import POISON, Fault, gate_of
from tests.process.serving.conftest import PROMPT
from tests.process.serving.serving import Serving, words_of_loss
from tpiedge.master.journal import GUILTY

OTHERS = (PROMPT, "The sun", "Lily and Tom")
#: Those of others stay shorter than the poison, which is one by its length.
TOKENS = 120
LIMIT_S = 120.0
#: As they say, so that three machines are better than two.
SLOW = 1e4


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A line for each node that died of it: how many sequences were in the step."""
    return tmp_path_factory.mktemp("poison") / "deaths"


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving], deaths: Path) -> Serving:
    """Whose master can serve with either worker alone, and not without."""
    cluster = clusters("--min-workers", 1, "--parallel", len(OTHERS) + 1)
    cluster.start_master()
    for name in ("ann", "bob"):
        cluster.start_worker(name, bytes_per_s=SLOW, program=Fault("poison", deaths).program)
    return cluster


def poison(cluster: Serving) -> openai.APIError | None:
    """How it ends."""
    prompt = list(range(10, 10 + POISON))
    with cluster.client() as client:
        try:
            stream = client.with_options(timeout=LIMIT_S).completions.create(
                model="demo", prompt=prompt, max_tokens=TOKENS, temperature=0, stream=True
            )
            assert "".join(chunk.choices[0].text for chunk in stream) == ""
        except openai.APIError as error:
            return error
    return None


@pytest.mark.fault(
    "P6", "of three nodes, the last time alone: it fails in words, others' answers go on and are exact"
)
def test_it_fails_alone_and_the_others_answers_are_whole(
    cluster: Serving, deaths: Path, exact: Callable[[Serving], None]
) -> None:
    cluster.wait_ready(3)
    undisturbed = [cluster.whole(prompt, TOKENS) for prompt in OTHERS]
    before = len(cluster.master.log)
    gate = gate_of(deaths)
    gate.touch()  # or they may have ended before it begins
    with ThreadPoolExecutor(len(OTHERS) + 1) as threads:
        answers = [threads.submit(cluster.whole, prompt, TOKENS, LIMIT_S) for prompt in OTHERS]
        cluster.wait_until(lambda status: status["running"] == len(OTHERS))
        poisoned = threads.submit(poison, cluster)
        cluster.wait_until(lambda status: status["running"] == len(OTHERS) + 1)
        gate.unlink()
        error = poisoned.result(LIMIT_S)
        assert [answer.result(LIMIT_S) for answer in answers] == undisturbed
    log, died = cluster.master.log[before:], words_of_loss("[12]", ".*killed by SIGSEGV")
    # One more where another that did not get on, either, was tried first and still ran.
    assert GUILTY <= len(re.findall(f"stopped serving: {died}", log)) <= GUILTY + 1, log
    assert re.search(died, str(error)), error
    sequences = [int(line) for line in deaths.read_text().splitlines()]
    assert sequences[0] > 1
    assert sequences[-1] == 1
    cluster.wait_ready(3)
    exact(cluster)
    assert cluster.whole(OTHERS[0], TOKENS) == undisturbed[0]
