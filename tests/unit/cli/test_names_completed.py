"""Models and testbeds are completed by name, whatever state the cache is in."""

from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from tpiedge.cli.main import cli
from tpiedge.lab.testbed import state
from tpiedge.lab.testbed.reading import shipped_scenarios
from tpiedge.model.aliases import aliases
from tpiedge.pack.manifest import MANIFEST_NAME

COMMIT = "c" * 40
HERE = ["acme/tiny", "acme-tiny-bf16"]
MODEL_FLAGS = [
    ("run", "--model"),
    ("master", "--model"),
    ("pack",),
    ("pull",),
    ("show",),
    ("rm",),
    ("bench", "decode", "--model"),
    ("bench", "memory", "--model"),
    ("eval", "perplexity", "--model"),
    ("eval", "agreement", "--model"),
    ("eval", "agreement", "--reference-model"),
]
TESTBED_FLAGS = [
    ("run", "--testbed"),
    ("demo", "--testbed"),
    ("bench", "decode", "--testbed"),
    ("bench", "allreduce", "--testbed"),
    ("testbed", "up"),
]


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
    """With a pulled model and a pack, which is damaged."""
    fill(tmp_path / "cache")
    monkeypatch.setenv("TPIEDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("words", MODEL_FLAGS, ids=" ".join)
def test_whatever_takes_a_model(words: tuple[str, ...]) -> None:
    anywhere = [*aliases(), "demo"] if words in (("pull",), ("show",)) else ["demo"]
    assert completed(*words) == [*anywhere, *HERE]
    assert completed(*words, incomplete="acme") == HERE
    assert completed(*words, incomplete="./") == []


def test_what_was_pulled_is_completed_by_its_alias_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = aliases()["tinyllama"].repo
    fill(tmp_path, repo)
    monkeypatch.setenv("TPIEDGE_CACHE", str(tmp_path))
    assert completed("run") == ["demo", "tinyllama", repo, "acme-tiny-bf16"]


def test_the_cache_of_the_line_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPIEDGE_CACHE", str(tmp_path / "nothing"))
    fill(tmp_path / "cache")
    assert completed("run", "--model", incomplete="acme") == []
    assert completed("run", "--cache", str(tmp_path / "cache"), "--model", incomplete="acme") == HERE


def test_a_damaged_cache_has_fewer_names(cache: Path) -> None:
    snapshot = cache / "hub" / "models--acme--tiny" / "snapshots" / COMMIT
    snapshot.rmdir()
    snapshot.write_text("not a folder")
    assert completed("run", "--model") == ["demo", "acme-tiny-bf16"]


def test_a_cache_that_is_no_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = cache / "file"
    file.write_text("")
    for broken in (str(file), "zero\0byte", "x" * 5000):
        if "\0" not in broken:
            monkeypatch.setenv("TPIEDGE_CACHE", broken)
        assert completed("run", "--cache", broken, "--model") == ["demo"]


@pytest.mark.parametrize("words", TESTBED_FLAGS, ids=" ".join)
def test_whatever_takes_a_testbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(state, "ROOT", tmp_path)
    (tmp_path / "mine").mkdir()
    assert completed(*words) == [*shipped_scenarios(), "mine"]
    assert completed(*words, incomplete="pa") == ["pair", "paper-8"]


@pytest.mark.parametrize("verb", ["down", "status", "exec", "link", "check"])
def test_what_looks_at_a_testbed_that_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(state, "ROOT", tmp_path)
    assert completed("testbed", verb) == []
    (tmp_path / "mine").mkdir()
    assert completed("testbed", verb) == ["mine"]
