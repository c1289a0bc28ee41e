from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.process.conftest import PROMPT
from tests.process.serving.pair.conftest import PARALLEL
from tests.process.serving.serving import Serving

LONG = 100
PROMPTS = [PROMPT, "The sun", "Lily and Tom"]  # PARALLEL of them
LIMIT_S = 90.0

pytestmark = pytest.mark.usefixtures("serving_on")


def ask(cluster: Serving, prompt: str, tokens: int) -> tuple[str, dict]:
    """The answer that goes on to its last token, and its usage."""
    with cluster.client() as client:
        answer = client.completions.create(
            model="demo", prompt=prompt, max_tokens=tokens, temperature=0, extra_body={"ignore_eos": True}
        )
    return answer.choices[0].text, answer.usage.model_dump()


@pytest.mark.fault("P1", "every answer that is under way pauses, goes on and is exact, and says so")
def test_running_and_queued_requests_continue_after_a_loss(cluster: Serving) -> None:
    undisturbed = [ask(cluster, prompt, LONG)[0] for prompt in PROMPTS]
    with ThreadPoolExecutor(PARALLEL + 1) as threads:
        node = cluster.workers["ann"].node
        with cluster.crawling():
            running = [threads.submit(ask, cluster, prompt, LONG) for prompt in PROMPTS]
            cluster.wait_until(lambda status: status["running"] == PARALLEL)
            waiting = threads.submit(ask, cluster, "One day", 5)
            cluster.wait_until(lambda status: status["queued"] == 1)
            losses = cluster.losses()
            node.kill()
        found = [answer.result(LIMIT_S) for answer in running]
        assert waiting.result(LIMIT_S)[1]["completion_tokens"] == 5
    assert [text for text, _ in found] == undisturbed
    for _, usage in found:
        assert 1 <= usage["pauses"]["count"] <= cluster.losses() - losses
        assert usage["pauses"]["seconds"] > 0
        assert "tokens_per_step" not in usage
