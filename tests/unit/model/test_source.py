import re
from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.model import source
from tpiedge.model.presets import PRESETS, aliases
from tpiedge.model.source import HubName, parse_hub_name


@pytest.mark.parametrize(
    ("name", "named"),
    [
        *(
            (name, "give 'demo', a folder")
            for name in (
                "",
                "nowhere",
                "../name",
                "org/name@../../x",
                "a--b/name",
                "a\0b",
                "x" * 5000,
                "a\nb",
            )
        ),
        ("org/name", "tpiedge pull org/name"),
        ("org/name@v2", "tpiedge pull org/name@v2"),
        ("llama3.2-1b", r"tpiedge pull llama3\.2-1b"),
        ("models/missing.GGUF", "no file 'models/missing.GGUF'"),
    ],
)
def test_unknown_model_name_is_refused_in_one_line(name: str, named: str) -> None:
    with pytest.raises(UserError, match=named) as raised:
        source.resolve_model(name)
    assert str(raised.value).isprintable()


def test_folder_without_config_does_not_shadow_alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tinyllama").mkdir()
    with pytest.raises(UserError, match="tpiedge pull tinyllama"):
        source.resolve_model("tinyllama")
    with pytest.raises(UserError, match="give 'demo', a folder with config"):
        source.resolve_model(str(tmp_path))


def test_a_folder_wins_over_a_model_of_the_same_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    folder.rename(folder.parent / "tinyllama")
    assert source.resolve_model("tinyllama") == Path("tinyllama")


@pytest.mark.parametrize("given", ["m.gguf", "M.GGUF", "two words.gguf"])
def test_gguf_file_is_refused_with_import_advice(given: str) -> None:
    assert source.is_gguf(given)
    shown = f"'{given}'" if " " in given else given
    with pytest.raises(UserError, match=f"^{shown} is a GGUF file: use tpiedge import-gguf {shown} first"):
        source.refuse_gguf(Path(given))


def test_folder_of_gguf_files_is_refused_with_import_advice(tmp_path: Path, folder: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for place in (files, folder):
        (place / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match=f"use tpiedge import-gguf {files}/m.gguf first"):
        source.resolve_model(str(files))
    assert source.resolve_model(str(folder)) == folder


@pytest.mark.parametrize("name", list(aliases()))
def test_every_alias_matches_its_preset(name: str) -> None:
    alias = aliases()[name]
    assert alias.name == alias.shape == name in PRESETS
    assert parse_hub_name(name) == HubName(alias.repo, alias.revision) == parse_hub_name(alias.repo)
    assert alias.licence
    assert alias.gated == alias.repo.startswith(("meta-llama/", "mistralai/"))
    size = re.search(r"([\d.]+)b$", name)
    assert size is None or size[1] in re.findall(r"[\d.]+", alias.repo.lower())
