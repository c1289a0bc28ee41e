"""No client is told where the master's model lies, and another master may use its pack at the same time."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.process.command import wait_for
from tests.process.serving.serving import START_S, Serving
from tpiedge.model.source import DEMO, resolve_model


@pytest.mark.fault("H12", "no client is told the path of a model; who knows it may name the model by it")
def test_model_path_is_not_revealed_to_clients(tmp_path: Path, clusters: Callable[..., Serving]) -> None:
    path = str(shutil.copytree(resolve_model(DEMO), tmp_path / "babbler"))
    cluster = clusters("--alias", "demo", model=path)
    cluster.start_master()
    cluster.wait_ready(1)
    body = {"model": "demo", "prompt": "ba zu", "max_tokens": 1}
    with httpx.Client(base_url=cluster.url, trust_env=False, timeout=30.0) as http:
        for where in ("/v1/models", f"/v1/models/{path}", "/metrics", "/api/tags", "/api/ps"):
            answer = http.get(where)
            assert (answer.status_code, path in answer.text) == (200, False), where
        name = http.get("/v1/models").json()["data"][0]["id"]
        for model in (path, name):
            assert http.post("/v1/completions", json=body | {"model": model}).json()["model"] == name
        assert path not in http.post("/v1/completions", json=body | {"model": "other"}).text
    assert path not in json.dumps(cluster.status())


@pytest.mark.fault("F8", "both serve exactly")
def test_two_masters_share_a_cache(
    clusters: Callable[..., Serving], tmp_path: Path, exact: Callable[[Serving], None]
) -> None:
    """The masters start at once on an empty cache: one packs the model, and both serve it."""
    cache = tmp_path / "cache"
    pair = [clusters(cache=cache) for _ in range(2)]
    for cluster in pair:
        cluster.start_master(wait=False)
    for cluster in pair:
        wait_for(cluster.answers, START_S)
        cluster.wait_ready(1)
        exact(cluster)
    assert sum(len(re.findall(r"packing demo as \w+: .* in", cluster.master.log)) for cluster in pair) == 1
    assert len(list((cache / "packs").iterdir())) == 1
