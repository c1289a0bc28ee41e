"""The files of configs/models, each one."""

import re
from pathlib import Path

import pytest

from tpiedge.errors import InternalError
from tpiedge.model.aliases import aliases, load_alias
from tpiedge.model.config import ModelConfig
from tpiedge.model.hub.cache import HubName, parse_hub_name
from tpiedge.model.presets import PRESETS, preset
from tpiedge.model.spec import model_spec

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


#: Billions, as published (or counted in the published files), with the embedding and the head where they are two.
PUBLISHED = {
    "tinyllama": 1.10,
    "llama2-3b": 3.43,
    "llama2-7b": 6.74,
    "llama2-13b": 13.02,
    "llama2-70b": 68.98,
    "llama3-8b": 8.03,
    "llama3.1-8b": 8.03,
    "llama3.1-70b": 70.55,
    "llama3.2-1b": 1.24,
    "llama3.2-3b": 3.21,
    "llama3.3-70b": 70.55,
    "yi-34b": 34.39,
    "mistral-7b": 7.24,
    "mistral-7b-v0.3": 7.25,
    "qwen2.5-0.5b": 0.49,
    "qwen2.5-1.5b": 1.54,
    "qwen2.5-3b": 3.09,
    "qwen2.5-7b": 7.62,
    "qwen3-0.6b": 0.60,
    "qwen3-1.7b": 1.72,
    "qwen3-4b": 4.02,
    "qwen3-8b": 8.19,
}


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_shape_has_the_published_number_of_parameters(name: str):
    spec = model_spec(ModelConfig.from_huggingface(preset(name)))
    blobs = (spec.embedding, *spec.layers, spec.head)
    found = sum(matrix.rows * matrix.cols for blob in blobs for matrix in blob.matrices)
    found += sum(vector.length for blob in blobs for vector in blob.vectors)
    assert found / 1e9 == pytest.approx(PUBLISHED[name], rel=0.01)


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
