from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from tpiedge.cli.main import cli
from tpiedge.lab.testbed import state
from tpiedge.lab.testbed.description import shipped_scenarios
from tpiedge.model.presets import aliases
from tpiedge.pack.manifest import MANIFEST_NAME

COMMIT = "c" * 40
HERE = ["acme/tiny", "acme-tiny-bf16"]
OF_MODELS = (("run", "--model"), ("pack",), ("pull",), ("show",), ("eval", "agreement", "--reference-model"))
OF_TESTBEDS = (("run", "--testbed"), ("bench", "decode", "--testbed"), ("testbed", "up"))


def completed(*words: str, incomplete: str = "") -> list[str]:
    """The names; asserts that paths are asked for first."""
    found = BashComplete(cli, {}, "tpiedge", "_TPIEDGE_COMPLETE").get_completions(list(words), incomplete)
    assert [item.type for item in found[:1]] == ["file"]
    assert all(item.type == "plain" for item in found[1:])
    return [item.value for item in found[1:]]


def fill(folder: Path, pulled: str = "acme/tiny") -> None:
    entry = folder / "hub" / f"models--{pulled.replace('/', '--')}"
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text(COMMIT)
    (entry / "snapshots" / COMMIT).mkdir(parents=True)
    pack = folder / "packs" / "acme-tiny-bf16"
    pack.mkdir(parents=True)
    (pack / MANIFEST_NAME).write_text("not JSON")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fill(tmp_path / "cache")
    monkeypatch.setenv("TPIEDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.usefixtures("cache")
def test_model_arguments_complete_model_names() -> None:
    for words in OF_MODELS:
        anywhere = [*aliases(), "demo"] if words in (("pull",), ("show",)) else ["demo"]
        assert completed(*words) == [*anywhere, *HERE], words
    assert completed("run", "--model", incomplete="acme") == HERE
    assert completed("run", "--model", incomplete="./") == []


def test_completion_uses_the_cache_flag_and_pulled_aliases(tmp_path: Path) -> None:
    repo = aliases()["tinyllama"].repo
    fill(tmp_path, repo)
    assert completed("run", "--cache", str(tmp_path)) == ["demo", "tinyllama", repo, "acme-tiny-bf16"]


def test_completion_skips_damaged_cache_entries(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = cache / "hub" / "models--acme--tiny" / "snapshots" / COMMIT
    snapshot.rmdir()
    snapshot.write_text("not a folder")
    assert completed("run", "--model") == ["demo", "acme-tiny-bf16"]
    for broken in (str(snapshot), "zero\0byte", "x" * 5000):
        if "\0" not in broken:
            monkeypatch.setenv("TPIEDGE_CACHE", broken)
        assert completed("run", "--cache", broken, "--model") == ["demo"]


def test_testbed_arguments_complete_testbed_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "ROOT", tmp_path)
    assert completed("testbed", "down") == []
    (tmp_path / "mine").mkdir()
    for words in OF_TESTBEDS:
        assert completed(*words) == [*shipped_scenarios(), "mine"], words
    assert completed("testbed", "up", incomplete="pa") == ["pair", "paper-8"]
    for verb in ("down", "status", "exec", "link", "check"):
        assert completed("testbed", verb) == ["mine"], verb
