"""A base model, which has a tokenizer and no chat template, is served: it continues texts and answers no messages."""

import shutil
from pathlib import Path

import httpx

from tests.process.serving.serving import START_S, Serving


def test_a_model_without_a_chat_template_is_served(tmp_path: Path, text_model: Path, tpiedge) -> None:
    folder = tmp_path / "base"
    shutil.copytree(text_model, folder)
    (folder / "chat_template.jinja").unlink()
    cluster = Serving(tmp_path / "cluster", "--context", 64, cache=tmp_path / "cache", model=str(folder))
    try:
        cluster.start_master()
        cluster.wait_ready(1)
        model = httpx.get(f"{cluster.url}/v1/models", timeout=START_S).json()["data"][0]["id"]
        body = {"model": model, "prompt": "ba be", "max_tokens": 3}
        assert httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=START_S).status_code == 200
        told = tpiedge("chat", "--url", cluster.url, "--prompt", "ba be")
        assert told.status != 0
        assert "has no chat template, so it continues texts" in told.err
        assert len(told.err.strip().splitlines()) == 1
    finally:
        cluster.close()
    ran = tpiedge("run", "--model", folder, "--threads", 1, "--prompt", "ba be", "--max-tokens", 3)
    assert (ran.status, ran.err.strip().count("chat template")) == (0, 0)
