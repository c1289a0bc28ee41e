"""Names that users type for models."""

import os
import subprocess
from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.model import source


def test_folder_with_a_config_is_taken(folder: Path) -> None:
    assert source.resolve_model(str(folder)) == folder


def test_demo_is_the_packaged_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_DEMO_FOLDER", folder)
    assert source.resolve_model("demo") == folder


def test_demo_that_is_not_installed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_DEMO_FOLDER", tmp_path)
    with pytest.raises(UserError, match="lacks the demo model"):
        source.resolve_model("demo")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("", "give 'demo', a folder"),
        ("nowhere", "give 'demo', a folder"),
        ("org/name", "tpiedge pull org/name"),
        ("org/name@v2", "tpiedge pull org/name@v2"),
        ("llama3.2-1b", r"tpiedge pull llama3\.2-1b"),
        ("../name", "give 'demo', a folder"),
        ("org/name@../../x", "give 'demo', a folder"),
        ("a--b/name", "give 'demo', a folder"),
        ("a\0b", "give 'demo', a folder"),
        ("x" * 5000, "give 'demo', a folder"),
        ("a\nb", "give 'demo', a folder"),
        ("missing.gguf", r"there is no file 'missing\.gguf'"),
        ("models/missing.GGUF", r"there is no file 'models/missing\.GGUF'"),
        ("a\nb.gguf", "there is no file"),
    ],
)
def test_anything_else_is_refused_in_one_line(name: str, named: str) -> None:
    with pytest.raises(UserError, match=named) as raised:
        source.resolve_model(name)
    assert str(raised.value).isprintable()


def test_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json"):
        source.resolve_model(str(tmp_path))


def test_a_folder_wins_over_a_model_of_the_same_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    folder.rename(folder.parent / "tinyllama")
    assert source.resolve_model("tinyllama") == Path("tinyllama")


def test_a_folder_without_a_config_hides_no_alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tinyllama").mkdir()
    with pytest.raises(UserError, match="tpiedge pull tinyllama"):
        source.resolve_model("tinyllama")


@pytest.mark.parametrize("given", ["m.gguf", "M.GGUF", "two words.gguf"])
def test_a_gguf_file_is_told_from_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / given).write_bytes(b"GGUF")
    shown = f"'{given}'" if " " in given else given
    with pytest.raises(UserError, match=f"^{shown} is a GGUF file: use tpiedge import-gguf {shown} first"):
        source.resolve_model(given)


def test_a_folder_of_gguf_files_is_told_from_a_model(tmp_path: Path, folder: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for place in (files, folder):
        (place / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match=f"use tpiedge import-gguf {files}/m.gguf first"):
        source.resolve_model(str(files))
    assert source.resolve_model(str(folder)) == folder


@pytest.mark.parametrize(
    "given",
    [
        "/".join(["long" * 20] * 3) + "/m.gguf",
        "two  spaces.gguf",
        " first.gguf",
        "-x.gguf",
        "-x/m.gguf",
        "it's.gguf",
        "it's  \\n.gguf",
        "line\nbreak\tabc.gguf",
        "no\u00a0break.gguf",
        "größe.gguf",
        os.fsdecode(b"no utf-8 \xff.gguf"),
    ],
)
def test_the_command_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path(given).parent.mkdir(parents=True, exist_ok=True)
    Path(given).write_bytes(b"GGUF")
    with pytest.raises(UserError) as raised:
        source.resolve_model(given)
    line = " ".join(str(raised.value).split())  # as it is printed
    assert line.isprintable()
    command = line.partition("use tpiedge import-gguf ")[2].partition(" first, then")[0]
    read = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True, timeout=30
    ).stdout
    named = os.fsdecode(read.removesuffix(b"\0"))
    assert named == (f"./{given}" if given.startswith("-") else given)


@pytest.mark.parametrize("name", ["models/tiny", "tinyllama"])
@pytest.mark.parametrize("file", ["m.gguf", "M.GGUF"])
def test_a_folder_of_gguf_files_is_no_model_to_pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir(parents=True)
    (Path(name) / file).write_bytes(b"GGUF")
    with pytest.raises(UserError, match=f"use tpiedge import-gguf {name}/{file} first"):
        source.resolve_model(name, tmp_path / "cache")


def test_a_gguf_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no file '.*/gone\.gguf': give the path"):
        source.resolve_model(str(tmp_path / "gone.gguf"))
