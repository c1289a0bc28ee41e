"""`tpiedge master --answer-limit`: the clock ends what takes longer, and nothing else."""

from collections.abc import Callable

import httpx

from tests.process.serving.serving import Serving

#: Less than a crawling answer takes, more than a short one takes beside much other work.
ANSWER_S = 10
LIMIT_S = 90.0


def test_an_answer_that_takes_longer_ends_and_the_next_one_is_given(clusters: Callable[..., Serving]) -> None:
    cluster = clusters("--answer-limit", ANSWER_S)
    cluster.start_master()
    cluster.wait_ready(1)
    body = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 1000, "ignore_eos": True}
    with httpx.Client(base_url=cluster.url, trust_env=False, timeout=LIMIT_S) as http:
        with cluster.crawling():
            late = http.post("/v1/completions", json=body)
        assert late.status_code == 504
        assert late.json()["error"]["code"] == "deadline_exceeded"
        cluster.wait_ready(1)
        short = http.post("/v1/completions", json=body | {"max_tokens": 2})
        assert short.json()["usage"]["completion_tokens"] == 2
