"""The files of configs/models, each one."""

import re
from pathlib import Path

import pytest

from tpiedge.errors import InternalError
from tpiedge.model.aliases import aliases, load_alias
from tpiedge.model.config import ModelConfig
from tpiedge.model.hub_cache import HubName, parse_hub_name
from tpiedge.model.presets import PRESETS, preset

WANTED = [
    "tinyllama",
    "llama2-3b",
    "llama2-7b",
    "llama2-13b",
    "llama2-70b",
    "llama3.1-8b",
    "llama3.1-70b",
    "llama3.2-1b",
    "llama3.2-3b",
    "yi-34b",
    "mistral-7b",
    "qwen2.5-0.5b",
    "qwen2.5-1.5b",
    "qwen2.5-3b",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "qwen3-8b",
]

GOOD = 'repo = "org/name"\nrevision = "main"\ngated = false\nlicence = "mit"\nshape = "tinyllama"\n'


def test_every_wanted_name_is_there():
    assert sorted(aliases()) == sorted(WANTED)


@pytest.mark.parametrize("name", WANTED)
def test_an_alias_is_complete(name: str):
    alias = aliases()[name]
    assert alias.name == name
    assert parse_hub_name(name) == HubName(alias.repo, alias.revision) == parse_hub_name(alias.repo)
    assert alias.licence
    assert alias.gated == alias.repo.startswith(("meta-llama/", "mistralai/"))


@pytest.mark.parametrize("name", WANTED)
def test_its_shape_is_the_presets(name: str):
    alias = aliases()[name]
    assert alias.shape in PRESETS
    assert alias.shape == name
    assert alias.config == ModelConfig.from_huggingface(preset(name))
    size = re.search(r"([\d.]+)b$", name)
    assert size is None or size[1] in re.findall(r"[\d.]+", alias.repo.lower())


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("false", '"no"'),
        GOOD.replace('licence = "mit"\n', ""),
        GOOD + "layers = 5\n",
        GOOD.replace('"main"', "1"),
    ],
)
def test_a_bad_file_is_a_defect_that_is_named(tmp_path: Path, text: str):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InternalError, match=r"bad\.toml"):
        load_alias(path)


def test_an_alias_with_a_revision_keeps_its_repository():
    assert parse_hub_name("tinyllama@v1") == HubName("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "v1")
