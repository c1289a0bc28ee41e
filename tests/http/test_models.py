"""Several models behind one server: names, lists, and how long weights stay in memory."""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import httpx
import pytest

from tests.fakes.service import PACK
from tests.http.test_cluster import ADMIN
from tpiedge.local.served_models import ServedModel

OTHER = ServedModel("other", 2048, 7, ("other-q4",), vocab_size=50, digest="pack-2", eos_ids=(3,))


@pytest.fixture
def server(serve, service):
    service.others = [OTHER]
    service.script = lambda generation: (generation.say(5), generation.finish())
    return serve()


def complete(server, **fields):
    body = {"prompt": [1, 2], "max_tokens": 1, "return_token_ids": True} | fields
    return httpx.post(f"{server.url}/v1/completions", json=body)


@pytest.mark.parametrize(
    ("model", "name", "pack"),
    [
        (None, "babbler", PACK),
        ("babbler", "babbler", PACK),
        ("other", "other", "pack-2"),
        ("other-q4", "other", "pack-2"),
        ("other:latest", "other", "pack-2"),
    ],
)
def test_request_takes_the_model_that_it_names(server, service, model, name, pack):
    assert complete(server, model=model).json()["model"] == name
    request = service.generations.get(timeout=10).request
    assert (request.pack, request.stop_ids) == (pack, OTHER.eos_ids if name == "other" else service.eos_ids)


def test_limits_are_those_of_the_named_model(server):
    assert complete(server, model="other", prompt=[49]).status_code == 200
    assert "not a token id below 50" in complete(server, model="other", prompt=[50]).text
    for model, tokens in (("babbler", 512), ("other", 2048)):
        assert f"maximum context length is {tokens}" in complete(server, model=model, prompt=[1] * 3000).text


def test_lists_have_every_model_and_ps_the_served_one(server, service):
    assert [one["id"] for one in httpx.get(f"{server.url}/v1/models").json()["data"]] == [
        "babbler",
        "other",
        "other-q4",
    ]
    card = httpx.get(f"{server.url}/v1/models/other-q4").json()
    assert (card["id"], card["context_length"]) == ("other", 2048)
    tags = httpx.get(f"{server.url}/api/tags").json()["models"]
    assert [one["name"] for one in tags] == ["babbler", "other", "other-q4"]
    (loaded,) = httpx.get(f"{server.url}/api/ps").json()["models"]
    assert (loaded["name"], loaded["context_length"]) == ("babbler", 512)
    assert loaded["expires_at"] == "9999-12-31T23:59:59.000000Z"
    service.kept_s = 300.0
    (loaded,) = httpx.get(f"{server.url}/api/ps").json()["models"]
    left_s = datetime.fromisoformat(loaded["expires_at"]).timestamp() - time.time()
    assert 240 < left_s <= 300
    service.asleep, service.unavailable = True, "the weights are not in memory"
    assert httpx.get(f"{server.url}/api/ps").json() == {"models": []}
    assert httpx.get(f"{server.url}/ready").json() == {"ready": True}


def test_answer_keeps_its_tokenizer_when_other_models_take_the_memory(server, service):
    service.packed = lambda pack: pytest.fail(f"{pack} would be opened again")
    assert complete(server, model="other").json()["choices"][0]["token_ids"] == [5]


def test_slow_disk_delays_lists_alone(server, service):
    slow, asked = threading.Event(), threading.Event()
    offered = service.offered()
    service.offered = lambda: asked.set() or (slow.wait(10) and offered)
    with ThreadPoolExecutor(1) as one:
        listed = one.submit(httpx.get, f"{server.url}/v1/models", timeout=20)
        assert asked.wait(10)
        try:
            assert httpx.get(f"{server.url}/health", timeout=5).status_code == 200
        finally:
            slow.set()
        assert listed.result(10).status_code == 200


@pytest.mark.parametrize(
    ("given", "kept_s"),
    [
        (0, 0.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("250ms", 0.25),
        ("60", 60.0),
        (-1, math.inf),
        ("-1m", math.inf),
    ],
)
def test_keep_alive_says_how_long_weights_stay(server, service, given, kept_s):
    body = {"model": "other", "prompt": "x", "keep_alive": given, "raw": True, "stream": False}
    assert httpx.post(f"{server.url}/api/embed", json={"input": [1], "keep_alive": given}).status_code == 200
    assert service.kept_s == kept_s
    del body["prompt"]
    said = httpx.post(f"{server.url}/api/generate", json=body).json()
    assert said["done_reason"] == ("unload" if kept_s == 0 else "load")
    assert service.used == [("other", kept_s)]


def test_weights_leave_memory_after_the_request_not_before(server, service):
    kept = []
    service.script = lambda generation: (kept.append(service.kept_s), generation.say(5), generation.finish())
    assert httpx.post(f"{server.url}/api/embed", json={"input": [1], "keep_alive": 0}).status_code == 200
    assert (kept, service.kept_s) == ([None], 0.0)


@pytest.mark.parametrize("given", ["soon", "5 minutes", "", "m", True, [1]])
def test_malformed_keep_alive_is_refused(server, service, given):
    answer = httpx.post(f"{server.url}/api/generate", json={"model": "other", "keep_alive": given})
    assert (answer.status_code, "keep_alive" in answer.text, service.used) == (400, True, [])


def test_administrator_chooses_a_model(server, service):
    for now in (False, True):
        body = {"model": "other-q4", "now": now}
        answer = httpx.post(f"{server.url}/admin/model", json=body, headers=ADMIN)
        assert answer.json() == {"model": "other"}
    assert service.used == [("other", False), ("other", True)]
    unknown = httpx.post(f"{server.url}/admin/model", json={"model": "third"}, headers=ADMIN)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert httpx.post(f"{server.url}/admin/model", json={"model": "other"}).status_code in (401, 403)
