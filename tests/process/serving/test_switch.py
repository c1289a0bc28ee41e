"""One master serves several models of its computer in turns."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.process.command import run_command
from tests.process.models import build_text_model
from tests.process.serving.serving import START_S, Serving

TOKENS = 300
PROMPTS = ("Once upon a time", "One day a bear")


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving], tmp_path_factory: pytest.TempPathFactory) -> Serving:
    folder = tmp_path_factory.mktemp("models")
    build_text_model(folder / "babbler")
    run_command("pack", folder / "babbler", "--cache", folder / "cache")
    made = clusters("--parallel", 2, "--min-workers", 1, cache=folder / "cache")
    made.start_master()
    made.start_worker("ann")
    made.wait_ready(2)
    return made


@pytest.fixture
def http(cluster: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.url, trust_env=False, timeout=START_S) as client:
        yield client


def complete(http: httpx.Client, model: str, prompt: str, max_tokens: int = 20) -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return http.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"]


def names(http: httpx.Client) -> list[str]:
    return [one["id"] for one in http.get("/v1/models").json()["data"]]


@pytest.mark.fault("P23", "in the middle of two streams: both pause, go on and are exact")
def test_switch_interrupts_two_streams_and_a_queue_which_then_continue(
    cluster: Serving, http: httpx.Client
) -> None:
    """Another model is asked for while two answers run and a third waits. It gets a turn, and no answer differs."""
    (other,) = set(names(http)) - {"demo", "demo-bf16"}
    said: dict[str, str] = {}

    def ask(model: str, prompt: str) -> threading.Thread:
        def work() -> None:
            said[prompt] = complete(http, model, prompt)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    with cluster.streaming(PROMPTS[0], TOKENS) as first, cluster.streaming(PROMPTS[1], TOKENS) as second:
        with cluster.crawling():
            queued = ask("demo", "There was")
            cluster.wait_until(lambda status: status["queued"] == 1)
            asked = ask(other, "ba zu")
            asked.join(START_S)
            assert "ba zu" in said, "the other model had its turn"
        assert not queued.is_alive() or "There was" not in said
        assert min(len(first.text), len(second.text)) > 0
        for stream in (first, second):
            stream.join()
            assert stream.error is None
        queued.join(START_S)
        assert [cluster.whole(prompt, TOKENS) for prompt in PROMPTS] == [first.text, second.text]
    for prompt, model in (("There was", "demo"), ("ba zu", other)):
        assert complete(http, model, prompt) == said[prompt]
    assert "stopped serving" not in cluster.master.log


def test_request_loads_the_model_that_it_names(cluster: Serving, http: httpx.Client) -> None:
    (other,) = set(names(http)) - {"demo", "demo-bf16"}
    for model in (other, "demo"):
        complete(http, model, "ba zu")
        (loaded,) = http.get("/api/ps").json()["models"]
        assert loaded["name"] == model
    listed = {one["name"] for one in http.get("/api/tags").json()["models"]}
    assert listed == {"demo", "demo-bf16", other}


def test_use_chooses_a_model_until_a_request_names_another(cluster: Serving, http: httpx.Client) -> None:
    (other,) = set(names(http)) - {"demo", "demo-bf16"}
    options = ("--state", cluster.state, "--cache", cluster.cache)
    assert f"{other} is served" in run_command("use", other, *options).out
    assert http.get("/api/ps").json()["models"][0]["name"] == other
    complete(http, "demo", "Once")
    assert http.get("/api/ps").json()["models"][0]["name"] == "demo"


def test_keep_alive_of_zero_frees_memory_until_the_next_request(cluster: Serving, http: httpx.Client) -> None:
    before = complete(http, "demo", "Once")
    assert (
        http.post("/api/generate", json={"model": "demo", "keep_alive": 0}).json()["done_reason"] == "unload"
    )
    cluster.wait_until(lambda status: status["asleep"])
    assert (http.get("/api/ps").json(), cluster.ready().status_code) == ({"models": []}, 200)
    assert cluster.node("master")["pid"] is None
    assert complete(http, "demo", "Once") == before
    http.post("/api/generate", json={"model": "demo", "keep_alive": -1})


def test_switch_off_refuses_other_models(
    cluster: Serving, clusters: Callable[..., Serving], tmp_path: Path
) -> None:
    alone = clusters("--switch", "off", cache=cluster.cache)
    alone.start_master()
    alone.wait_ready(1)
    with httpx.Client(base_url=alone.url, trust_env=False, timeout=START_S) as http:
        assert set(names(http)) == {"demo", "demo-bf16"}
        answer = http.post("/v1/completions", json={"model": "babbler-f32", "prompt": "ba"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
