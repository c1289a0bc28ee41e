"""From a hub to an answer and back to an empty disk, through the command."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hub_server import Hub, Repo, running_hub
from tests.process.command import Ended, Started

NAME = "org/babbler"


@pytest.fixture
def hub(text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the model, and a cache of this test's own."""
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("TPIEDGE_CACHE", str(tmp_path / "cache"))
        hub.repos[NAME] = Repo.of(text_model)
        yield hub


def test_pull_run_and_remove(
    hub: Hub, tpiedge: Callable[..., Ended], generate: Callable[..., dict], text_model: Path, tmp_path: Path
) -> None:
    assert "tpiedge pull org/babbler" in tpiedge("run", "--model", NAME, "--prompt", "ba").err
    pulled = tpiedge("pull", NAME, "--json")
    assert pulled.status == 0, pulled.err
    assert json.loads(pulled.out)["fetched_bytes"] == sum(map(len, hub.repos[NAME].files.values()))
    assert "pulling org/babbler: " in pulled.err
    asked = len(hub.requests)
    prompt = ("--nodes", 2, "--prompt", "ba zu", "--max-tokens", 4)
    record = generate("--model", NAME, *prompt)
    assert record["token_ids"] == generate("--model", text_model, *prompt)["token_ids"]
    assert len(hub.requests) == asked
    listed = json.loads(tpiedge("ls", "--json", "--all").out)
    assert [model["model"] for model in listed["models"]] == [NAME]
    assert NAME in [pack["model"] for pack in listed["packs"]]
    assert "llama2-70b" in [alias["name"] for alias in listed["aliases"]]
    shown = json.loads(tpiedge("show", NAME, "--json").out)
    assert (shown["num_layers"], shown["hidden_size"], len(shown["packs"])) == (3, 64, 1)
    assert tpiedge("rm", NAME, stdin="n\n").status == 0
    assert json.loads(tpiedge("ls", "--json").out)["models"]
    assert tpiedge("rm", NAME, "--packs-only", "--yes").status == 0
    assert [pack["model"] for pack in json.loads(tpiedge("ls", "--json").out)["packs"]] == ["babbler"]
    assert tpiedge("rm", NAME, "--yes").status == 0
    assert "not on this computer" in tpiedge("run", "--model", NAME, "--prompt", "ba").err
    assert not list((tmp_path / "cache" / "hub").glob("models--*"))
    assert tpiedge("rm", text_model, "--yes").status == 0
    assert (text_model / "model.safetensors").is_file()


def test_a_model_in_use_is_not_removed(
    hub: Hub, tpiedge: Callable[..., Ended], start: Callable[..., Started]
) -> None:
    assert tpiedge("pull", NAME).status == 0
    running = start(
        "run", "--model", NAME, "--prompt", "ba", "--max-tokens", 20000, "--ignore-eos", "--threads", 1
    )
    running.wait_for_output()
    refused = tpiedge("rm", NAME, "--yes")
    assert refused.status == 2
    assert "a running tpiedge uses the pack" in refused.err
    assert json.loads(tpiedge("ls", "--json").out)["models"]


def test_an_interrupted_pull_resumes_and_errors_are_one_line(hub: Hub, tpiedge: Callable[..., Ended]) -> None:
    hub.repos[NAME].gated = True
    refused = tpiedge("pull", NAME)
    assert refused.status == 2
    assert refused.err == (
        f"tpiedge: {NAME} is gated: accept the licence at {hub.endpoint}/{NAME} and set HF_TOKEN to a token of your "
        "account\n"
    )
    hub.cuts["model.safetensors"] = [1000]
    assert tpiedge("pull", NAME, HF_TOKEN="hf_test").status == 0
    assert hub.ranges("model.safetensors") == [None, "bytes=1000-"]
    assert hub.tokens[-1] == "Bearer hf_test"


def test_show_and_ls_know_what_was_never_pulled(tpiedge: Callable[..., Ended]) -> None:
    shown = tpiedge("show", "llama3.1-70b")
    assert "gated" in shown.out
    assert "70.55 billion" in shown.out
    assert "qwen3-0.6b" in tpiedge("ls", "--all").out
    assert tpiedge("show", "org/unknown").status == 2
    assert "tpiedge ls --all" in tpiedge("pull", "demo").err
