"""Scores of prompts over HTTP are those of transformers: what evaluations ask for, by lists of prompts that are echoed.

T positions of a prompt, V vocabulary.
"""

from functools import cache
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.process.serving.serving import Serving

DEMO = Path(__file__).parents[3] / "tpiedge" / "model" / "demo"
TEXTS = [
    "Once upon a time there was a little fox who lived in a box.",
    "The",
    "A cat sat on the mat, and then it ran away from the dog that sat there too. " * 8,
]
TOP = 5
LIMIT_S = 100.0

pytestmark = pytest.mark.usefixtures("serving_on")


@pytest.fixture(scope="module")
def cluster(clusters) -> Serving:
    cluster = clusters("--min-workers", 1, "--precision", "f32")
    cluster.start_master()
    cluster.start_worker("ann")
    return cluster


@cache
def model():
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()


@cache
def expected(ids: tuple[int, ...]) -> np.ndarray:
    """[T, V] log probabilities of what follows each position."""
    import torch

    with torch.no_grad():
        logits_TV = model()(torch.tensor([ids])).logits[0].double()
    return torch.log_softmax(logits_TV, dim=-1).numpy()


def post(cluster: Serving, path: str, **fields) -> dict:
    answer = httpx.post(f"{cluster.url}{path}", json=fields, timeout=LIMIT_S, trust_env=False)
    assert answer.status_code == 200, answer.text
    found: dict = answer.json()
    return found


def ids_of(cluster: Serving, text: str) -> tuple[int, ...]:
    return tuple(post(cluster, "/tokenize", prompt=text)["tokens"])


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("written", ["text", "ids"])
def test_the_scores_of_prompts(cluster: Serving, written: str, max_tokens: int) -> None:
    every = [ids_of(cluster, text) for text in TEXTS]
    found = post(
        cluster,
        "/v1/completions",
        model="demo",
        prompt=TEXTS if written == "text" else every,
        echo=True,
        logprobs=TOP,
        max_tokens=max_tokens,
        temperature=0,
    )
    assert found["usage"]["prompt_tokens"] == sum(map(len, every))
    assert found["usage"]["completion_tokens"] == max_tokens * len(every)
    for ids, text, choice in zip(every, TEXTS, found["choices"], strict=True):
        scores, expected_TV = choice["logprobs"], expected(ids)
        assert choice["text"].startswith(text) or written == "ids"
        assert len(scores["tokens"]) == len(ids) + max_tokens
        own, top = scores["token_logprobs"], scores["top_logprobs"]
        assert (own[0], top[0]) == (None, None)
        for place in range(1, len(ids)):
            expected_V = expected_TV[place - 1]
            assert own[place] == pytest.approx(expected_V[ids[place]], abs=1e-3)
            best = np.sort(expected_V)[::-1][:TOP]
            # Two tokens that are written alike stand once.
            assert list(top[place].values()) == pytest.approx(best, abs=1e-3) or len(top[place]) < TOP
            likeliest = int(expected_V.argmax()) == ids[place]
            assert likeliest == (own[place] == max(top[place].values()))
        if max_tokens:
            assert own[-1] == pytest.approx(expected_TV[-1].max(), abs=1e-3)


def test_a_stream_tells_the_same_scores(cluster: Serving) -> None:
    asked = {
        "model": "demo",
        "prompt": TEXTS[0],
        "echo": True,
        "logprobs": 2,
        "max_tokens": 4,
        "temperature": 0,
    }
    whole = post(cluster, "/v1/completions", **asked)["choices"][0]
    found: dict[str, list] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    text = ""
    url = f"{cluster.url}/v1/completions"
    with httpx.stream("POST", url, json=asked | {"stream": True}, timeout=LIMIT_S, trust_env=False) as lines:
        for line in lines.iter_lines():
            if line.startswith("data: {"):
                choice = httpx.Response(200, content=line.removeprefix("data: ")).json()["choices"][0]
                text += choice["text"]
                for name, told in found.items():
                    told += choice["logprobs"][name]
    assert text == whole["text"]
    assert found == whole["logprobs"]
