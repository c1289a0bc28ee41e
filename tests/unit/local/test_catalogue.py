import errno
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.model.gguf_files import TinyGguf
from tpiedge.cli.pack import pack as pack_command
from tpiedge.errors import UserError
from tpiedge.local import catalogue
from tpiedge.local.packing import pack_model
from tpiedge.local.prepare import prepare
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.source import resolve_model
from tpiedge.pack.specs import Precision


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyGguf(kinds={"": "Q8_0"}, layers=1).write(tmp_path_factory.mktemp("file") / "Tiny.Q8_0.gguf")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def pack_of(gguf: Path, cache: Path, precision: str | None = None, name: str | None = None) -> Path:
    model = GgufModel.open(gguf)
    storage = model.storage(Precision(precision) if precision else None)
    return pack_model(model, storage, cache, name=name).report.path


@pytest.mark.parametrize(
    ("stem", "precision", "name"),
    [
        ("tinyllama-1.1b-chat-v1.0.Q4_K_M", "q8", "tinyllama-1.1b-chat-v1.0-q8"),
        ("model-f16", "f32", "model-f32"),
        ("größe / 7", "q4", "gr--e---7-q4"),
        ("...", "q4", "model-q4"),
        ("x" * 300, "q4", "x" * 80 + "-q4"),
    ],
)
def test_short_name_is_made_of_file_and_precision(stem: str, precision: str, name: str) -> None:
    assert catalogue.short_name(stem, precision) == name
    assert catalogue.check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "demo", "Demo", "tinyllama", "LLAMA3.2-1B", "a/b", "../x", "-x", ".x", "x" * 97, "a b", "a\n"],
)
def test_reserved_or_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="--name") as raised:
        catalogue.check_name(name)
    assert str(raised.value).isprintable()


def test_a_pack_is_found_by_name_path_and_file(gguf: Path, cache: Path) -> None:
    pack = pack_of(gguf, cache)
    assert catalogue.load_label(pack) == catalogue.PackLabel("Tiny-q8", str(gguf))
    for name in ("Tiny-q8", "tiny-Q8", pack.name, str(pack)):
        found = catalogue.find_model(name, cache)
        assert (found.kind, found.path) == ("pack", pack), name
    assert catalogue.find_model(str(gguf), cache).kind == "GGUF file"
    refused = CliRunner().invoke(pack_command, [str(gguf), "--cache", str(cache)]).exception
    assert isinstance(refused, UserError)
    assert str(refused).startswith(f"{gguf} is a GGUF file: use tpiedge import-gguf {gguf} first")
    for name in ("tiny-q8", str(pack), str(gguf)):
        assert catalogue.packs_of(name, cache) == [pack], name


def test_a_name_belongs_to_one_pack(gguf: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = pack_of(gguf, cache), pack_of(gguf, cache, "q4")
    assert [catalogue.load_label(path).name for path in (first, second)] == ["Tiny-q8", "Tiny-q4"]
    assert catalogue.name_pack(second, "Tiny", "q8", "") == "Tiny-q4"  # it has one
    (second / "label.json").unlink()
    assert catalogue.name_pack(second, "tiny", "q8", "") == "tiny-q8-2"
    capsys.readouterr()
    with pytest.raises(UserError, match="another pack is called TINY-Q8: "):
        catalogue.name_pack(second, "x", "q4", "", "TINY-Q8")
    assert catalogue.name_pack(second, "x", "q4", "", "mine") == "mine"
    assert capsys.readouterr().err == "tpiedge: the pack was called tiny-q8-2 before\n"
    assert catalogue.name_pack(second, "x", "q4", "", "mine") == "mine"
    assert capsys.readouterr().err == ""
    assert catalogue.find_model("MINE", cache).path == second
    catalogue.save_label(second, catalogue.PackLabel("Tiny-q8"))  # by a copy of the folder
    with pytest.raises(UserError, match="several packs are called tiny-q8: give one of /"):
        catalogue.find_model("tiny-q8", cache)


def test_an_import_that_was_killed_is_completed(gguf: Path, cache: Path) -> None:
    pack = pack_of(gguf, cache)
    shutil.rmtree(pack / "text")
    (pack / "label.json").unlink()
    model = prepare(str(gguf), None, None, cache)
    assert model.name == "Tiny-q8"
    assert (pack / "text" / "config.json").is_file()


def test_read_only_cache_is_usable(gguf, cache, monkeypatch):
    monkeypatch.setattr("tpiedge.local.catalogue.save_label", lambda *_: None)
    demo, imported = prepare("demo", None, None, cache), pack_of(gguf, cache)
    assert not (demo.pack.path / "label.json").exists()

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tpiedge.local.catalogue.save_label", refuse)
    monkeypatch.setattr("tpiedge.local.packing.write_files", refuse)
    monkeypatch.setattr("os.access", lambda *_: False)
    assert prepare("demo", None, None, cache).also_called == (demo.pack.path.name,)
    assert prepare(str(gguf), None, None, cache).name == imported.name


def test_model_given_by_path_has_a_public_name(gguf, cache, tmp_path, monkeypatch):
    imported = pack_of(gguf, cache)
    copy = shutil.copytree(imported, tmp_path / "elsewhere" / "copied")
    unnamed = shutil.copytree(imported, tmp_path / "elsewhere" / "unnamed")
    (unnamed / "label.json").unlink()
    folder = tmp_path / "Babbler"
    shutil.copytree(resolve_model("demo", None), folder)
    monkeypatch.chdir(unnamed)
    for given, public in {
        str(gguf): "Tiny-q8",
        str(copy): "Tiny-q8",
        ".": "unnamed",
        str(folder): "Babbler-bf16",
    }.items():
        model = prepare(given, None, None, cache)
        assert (model.public_name, model.path) == (public, given)
    for named in ("demo", "tiny-q8"):
        model = prepare(named, None, None, cache)
        assert (model.public_name, model.path) == (named, None)


def test_model_with_several_packs_needs_a_pack_name(gguf: Path, cache: Path) -> None:
    with pytest.raises(UserError, match=f"no pack was made of {gguf} yet"):
        catalogue.the_pack_of(str(gguf), cache)
    first, second = pack_of(gguf, cache), pack_of(gguf, cache, "q4")
    assert catalogue.packs_of(str(gguf), cache) == sorted([first, second])
    with pytest.raises(UserError, match="several packs: give one of Tiny-q4, Tiny-q8"):
        catalogue.the_pack_of(str(gguf), cache)
    assert catalogue.the_pack_of("tiny-q4", cache) == second


@pytest.mark.parametrize(
    "label", [None, b"", b"[]", b'{"name": 1, "source": ""}', b'{"name": "../x", "source": ""}']
)
def test_unlabelled_pack_is_named_after_its_folder(gguf, cache, label):
    pack = pack_of(gguf, cache)
    (pack / "label.json").unlink()
    if label is not None:
        (pack / "label.json").write_bytes(label)
    (stored,) = catalogue.stored_packs(cache)
    assert (stored.name, stored.source) == (pack.name, "")
    assert catalogue.find_model(pack.name, cache).path == pack


def test_similar_names_are_suggested(gguf: Path, cache: Path) -> None:
    pack_of(gguf, cache)
    for slip, meant in (
        ("tiny", "Tiny-q8 or tinyllama"),
        ("Tiny-q9", "Tiny-q8"),
        ("tinny-q8", "Tiny-q8"),
        ("dmeo", "demo"),
        ("lama2-70b", "llama2-70b or llama2-7b"),
        ("smolm2", "smollm2"),
        ("qwen3:4", "qwen3-4b"),
    ):
        with pytest.raises(UserError, match=rf"; did you mean {re.escape(meant)}"):
            catalogue.find_model(slip, cache)
    for other in ("entirely-different", "org/demo", "llama2-7b", "missing.gguf"):
        with pytest.raises(UserError) as raised:
            catalogue.find_model(other, cache)
        assert "did you mean" not in str(raised.value)
