"""No client is told where the master's model lies."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.process.serving.serving import Serving


@pytest.mark.fault("H12", "no client is told the path of a model; who knows it may name the model by it")
def test_the_path_of_the_model_is_told_to_nobody(text_model: Path, clusters: Callable[..., Serving]) -> None:
    cluster, path = clusters("--alias", "demo", model=text_model), str(text_model)
    cluster.start_master()
    cluster.wait_ready(1)
    asked = {"model": "demo", "prompt": "ba zu", "max_tokens": 1}
    with httpx.Client(base_url=cluster.url, trust_env=False, timeout=30.0) as http:
        for where in ("/v1/models", f"/v1/models/{path}", "/metrics", "/api/tags", "/api/ps"):
            answer = http.get(where)
            assert (answer.status_code, path in answer.text) == (200, False), where
        name = http.get("/v1/models").json()["data"][0]["id"]
        for model in (path, name):
            assert http.post("/v1/completions", json=asked | {"model": model}).json()["model"] == name
        assert path not in http.post("/v1/completions", json=asked | {"model": "other"}).text
    assert path not in json.dumps(cluster.status())
