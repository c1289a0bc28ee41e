import re
from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.model import source
from tpiedge.model.presets import PRESETS, aliases, unsupported
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
        ("org/new:new-Q8_0.gguf", "tpiedge pull org/new:new-Q8_0"),
        ("phi:1.2.3b", "phi:1.2.3b is not supported yet"),
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
def test_every_alias_is_an_instruct_model_with_a_preset(name: str) -> None:
    alias = aliases()[name]
    assert alias.name == name
    assert alias.shape in PRESETS
    tag = f":{alias.quant}" if alias.quant else ""
    place = HubName(alias.repo, quant=alias.quant)
    spelled = (name, name.upper(), ":".join(name.rsplit("-", 1)), *alias.also, alias.repo + tag)
    assert {parse_hub_name(one) for one in spelled} == {place}
    assert alias.licence
    assert alias.gated == alias.repo.startswith("meta-llama/")
    # In these files a tied embedding is stored twice.
    assert not (alias.repo.startswith("Qwen/Qwen2.5") and PRESETS[alias.shape]["tie_word_embeddings"])
    assert re.search("instruct|chat|-it-|/qwen3-|/phi-4-|/smollm3-|/gpt-oss-", alias.repo.lower())
    size = re.search(r"([\d.]+)[bm]$", name)
    assert (
        size is None
        or "/phi-4-" in alias.repo.lower()
        or size[1] in re.findall(r"[\d.]+", alias.repo.lower())
    )
    assert size is None or size[1] in alias.shape


def test_other_names_of_aliases_are_unambiguous() -> None:
    named = [*aliases(), *(other for alias in aliases().values() for other in alias.also)]
    assert len(named) == len(set(named))


QWEN = "Qwen/Qwen3-4B-GGUF"


@pytest.mark.parametrize(("text", "found"), [
    ("qwen3:4b", HubName(QWEN, quant="Q8_0")),
    ("qwen3:4b-instruct", HubName(QWEN, quant="Q8_0")),
    ("qwen3:4b-q4_K_M", HubName(QWEN, quant="Q4_K_M")),
    ("qwen3:4b-instruct-q4_K_M@v1", HubName(QWEN, "v1", "Q4_K_M")),
    ("qwen3:latest", parse_hub_name("qwen3-8b")),
    ("qwen3", parse_hub_name("qwen3-8b")),
    ("qwen3:30b", HubName("Qwen/Qwen3-30B-A3B-GGUF", quant="Q4_K_M")),
    ("qwen3:5b", None),
    ("qwen3:4b:Q8_0", None),
    ("gpt-oss:20b", HubName("openai/gpt-oss-20b")),
    ("tinyllama:1.1b-q4_0", None),  # is pulled as a checkpoint
    ("org/name:q4_k_m", HubName("org/name", quant="Q4_K_M")),
    ("org/name:q4_k_m@v1", HubName("org/name", "v1", "Q4_K_M")),
    ("org/name@v1:q4_k_m", HubName("org/name", "v1", "Q4_K_M")),
    ("org/name:some-file.Q8.gguf", HubName("org/name", quant="SOME-FILE.Q8")),
    ("hf.co/org/name:Q8_0", HubName("org/name", quant="Q8_0")),
    ("https://huggingface.co/org/name", HubName("org/name")),
    ("hf.co/org", None),
    ("org/name:", None),
    ("org/name:a--b", None),
    ("org/name:../x", None),
])  # fmt: skip
def test_name_is_parsed_as_ollama_takes_it(text: str, found: HubName | None) -> None:
    assert parse_hub_name(text) == found
    assert found is None or parse_hub_name(str(found)) == found


@pytest.mark.parametrize(("name", "nearest"), [
    ("gemma:7b", "mistral-7b or"), ("gemma3n:e4b", "gemma3-4b or"), ("gpt-oss:20b", None),
    ("command-r", "gemma3-4b or"), ("gemma4:26b", None), ("qwen3:30b", None), ("mixtral", None),
    ("granite4:3b", "llama3.2-3b or"), ("philosopher", None), ("phind", None), ("phi4:14b", None),
    ("google/gemma-4-31B-it", None), ("gemma3:4b", None), ("granite3.3:2b", None), ("qwen3:4b", None),
    ("gemma-3:5b", None), ("olmo-2", None), ("phi3.5", None), ("gemma:2b", "gemma2-2b or"), ("gemma2:9b", None),
])  # fmt: skip
def test_famous_family_without_support_is_refused_with_the_nearest(name: str, nearest: str | None) -> None:
    words = unsupported(name)
    assert (
        words is None
        if nearest is None
        else f"{name} is not supported yet; nearest: {nearest}" in (words or "")
    )
