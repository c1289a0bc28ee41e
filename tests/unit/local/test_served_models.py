import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.model.gguf_files import TinyGguf
from tpiedge.errors import UserError
from tpiedge.local.packing import pack_model
from tpiedge.local.prepare import prepare
from tpiedge.local.served_models import ServedModel, ServedModels, UnknownModel, served_model
from tpiedge.local.service import Service
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.source import parse_hub_name
from tpiedge.pack.specs import Precision


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with three packs of one file."""
    folder = tmp_path_factory.mktemp("packs")
    file = TinyGguf(kinds={"": "Q8_0"}, layers=1).write(folder / "Tiny.Q8_0.gguf")
    model = GgufModel.open(file)
    for precision in (Precision.Q8, Precision.F32, Precision.Q4):
        pack_model(model, model.storage(precision), folder / "cache")
    return folder / "cache"


@pytest.fixture
def cache(packs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packs, tmp_path / "cache"))


class Opening:
    def __init__(self) -> None:
        self.opened: list[str] = []
        self.used: set[str] = set()
        self.refusal = ""

    def models(self, cache: Path, only: list[str] | None = None, also: str = "fox") -> ServedModels:
        served = prepare("Tiny-q8", None, None, cache)
        described = served_model(served, 64, (also,))
        return ServedModels(described, served.pack.path, cache, only, self.open, lambda: self.used)

    def open(self, path: Path) -> ServedModel:
        if self.refusal:
            raise UserError(self.refusal)
        model = prepare(str(path), None, None, None)
        self.opened.append(model.public_name)
        return served_model(model, 64)


@pytest.fixture
def opening() -> Opening:
    return Opening()


@pytest.mark.parametrize("name", ["Tiny-f32", "tiny-F32", "Tiny-f32:latest"])
def test_other_packs_are_found_by_name_and_opened_once(opening: Opening, cache: Path, name: str) -> None:
    models = opening.models(cache)
    assert [one.name for one in models.offered] == ["Tiny-q8", "Tiny-f32", "Tiny-q4"]
    found = models.find(name)
    assert (found.name, models.find("Tiny-f32"), opening.opened) == ("Tiny-f32", found, ["Tiny-f32"])
    assert models.packed(found.digest) is found
    assert [one.name for one in models.offered] == ["Tiny-q8", "Tiny-f32", "Tiny-q4"]


def test_first_model_is_found_by_its_aliases(opening: Opening, cache: Path) -> None:
    models = opening.models(cache)
    assert models.find("fox:latest") is models.find("Tiny-q8") is models.first
    assert opening.opened == []


def test_listed_model_has_what_the_open_one_has(opening: Opening, cache: Path) -> None:
    models = opening.models(cache)
    listed = models.offered[1]
    opened = models.find("Tiny-f32")
    for what in ("name", "width", "family", "precision", "nbytes", "digest", "vocab_size"):
        assert getattr(listed, what) == getattr(opened, what), what


def test_model_is_described_without_being_opened(opening: Opening, cache: Path) -> None:
    models = opening.models(cache)
    assert (models.described("tiny-f32:latest"), opening.opened) == (models.offered[1], [])
    assert models.find("Tiny-f32") is models.described("Tiny-f32")


def test_every_spelling_of_a_pulled_name_is_the_first_model(opening: Opening, cache: Path) -> None:
    models = opening.models(cache, [], also=str(parse_hub_name("llama3.2:1b")))
    assert models.find("llama3.2:1b") is models.find("llama3.2-1b") is models.first


def test_served_model_is_listed_first(opening: Opening, cache: Path) -> None:
    models = opening.models(cache)
    master = SimpleNamespace(status=SimpleNamespace(pack=models.offered[1].digest))
    service = Service(master, None, None, models, None, None)  # type: ignore[arg-type]
    assert [one.name for one in service.offered()] == ["Tiny-f32", "Tiny-q8", "Tiny-q4"]


def test_paths_and_unknown_names_open_nothing(opening: Opening, cache: Path, tmp_path: Path) -> None:
    """A client must not make the master read folders that are no packs of its cache."""
    models = opening.models(cache)
    beside = shutil.copytree(next((cache / "packs").glob("*f32*")), tmp_path / "beside")
    for name in (str(beside), "../beside", "demo", "", "a\0b", "x" * 5000):
        with pytest.raises(UnknownModel, match=r"'Tiny-q8', 'Tiny-f32', 'Tiny-q4' are$"):
            models.find(name)
    assert opening.opened == []


def test_refusal_names_each_model_once(opening: Opening, cache: Path) -> None:
    found = opening.models(cache)
    first = replace(found.first, name="demo", also_called=("Tiny-q8",))
    path = prepare("Tiny-q8", None, None, cache).pack.path
    models = ServedModels(first, path, cache, None, opening.open, lambda: opening.used)
    with pytest.raises(UnknownModel, match=r"; 'demo', 'Tiny-f32', 'Tiny-q4' are$"):
        models.find("other")


def test_model_of_the_hub_is_refused_with_the_verb_that_fetches_it(opening: Opening, cache: Path) -> None:
    with pytest.raises(UnknownModel, match=r"are \('tpiedge use qwen3:0\.6b' on the master's computer"):
        opening.models(cache).find("qwen3:0.6b")


@pytest.mark.parametrize(("only", "offered"), [([], 1), (["Tiny-f32"], 2), (["Tiny-q8", "fox"], 1)])
def test_only_named_models_are_offered(opening: Opening, cache: Path, only: list[str], offered: int) -> None:
    models = opening.models(cache, only)
    assert len(models.offered) == offered
    if offered == 1:
        with pytest.raises(
            UnknownModel, match="'Tiny-q8' is: --switch or --models of the master allows no other"
        ):
            models.find("Tiny-f32")


def test_unknown_name_in_the_list_is_refused(opening: Opening, cache: Path) -> None:
    with pytest.raises(UnknownModel, match="'Tiny-f16' is not served"):
        opening.models(cache, ["Tiny-f16"])


def test_packs_that_come_and_go_are_noticed(opening: Opening, cache: Path) -> None:
    models = opening.models(cache)
    assert len(models.offered) == 3
    gone = next((cache / "packs").glob("*f32*"))
    gone.rename(cache / "elsewhere")
    assert len(models.offered) == 2
    (cache / "elsewhere").rename(gone)
    assert len(models.offered) == 3


def test_link_to_a_disk_that_is_not_there_hides_no_other_pack(opening: Opening, cache: Path) -> None:
    (cache / "packs" / "absent").symlink_to("/nonexistent/pack")
    assert len(opening.models(cache).offered) == 3


def test_name_of_any_folder_can_be_listed(opening: Opening, cache: Path) -> None:
    folder = next((cache / "packs").glob("*f32*"))
    (folder / "label.json").unlink()  # which has the source, too
    odd = os.fsencode(folder.parent) + b"/bad\xff\nname"
    os.rename(folder, odd)
    models = opening.models(cache)
    listed = models.offered[1].name
    assert (listed, models.find(listed).name) == (r"bad\udcff name", listed)
    with pytest.raises(UnknownModel):
        models.find(":latest")


def test_model_called_none_is_not_every_model(opening: Opening, cache: Path) -> None:
    with pytest.raises(UnknownModel):
        opening.models(cache, also="None").find("unknown")


def test_damaged_pack_is_left_out(opening: Opening, cache: Path) -> None:
    models = opening.models(cache)
    folder = next((cache / "packs").glob("*f32*"))
    (folder / "manifest.json").write_text("{")
    (folder / "new").touch()
    assert [one.name for one in models.offered] == ["Tiny-q8", "Tiny-q4"]


def test_models_out_of_use_leave_memory_when_another_opens(opening: Opening, cache: Path) -> None:
    models = opening.models(cache)
    models.find("Tiny-f32")
    models.find("Tiny-q4")
    models.find("Tiny-f32")
    opening.used = {models.packed(one.digest).digest for one in models.offered if one.name == "Tiny-f32"}
    models.find("Tiny-q4")
    models.find("Tiny-f32")
    assert opening.opened == ["Tiny-f32", "Tiny-q4", "Tiny-f32", "Tiny-q4"]


def test_refusal_tells_no_client_where_models_are(opening: Opening, cache: Path) -> None:
    models = opening.models(cache)
    folder = next((cache / "packs").glob("*f32*"))
    opening.refusal = f"{folder}/text/tokenizer.json is no tokenizer"
    with pytest.raises(UserError, match=rf"^{folder.name}/text/tokenizer\.json is no tokenizer$"):
        models.find("Tiny-f32")


def test_model_that_cannot_be_opened_stays_closed(opening: Opening, cache: Path) -> None:
    models = opening.models(cache)
    opening.refusal = "it does not fit"
    for _ in range(2):
        with pytest.raises(UserError, match="it does not fit"):
            models.find("Tiny-f32")
