"""The files of configs/models, each one."""

import re

import pytest

from tpiedge.model.config import ModelConfig
from tpiedge.model.presets import PRESETS, aliases, preset
from tpiedge.model.source import HubName, parse_hub_name


@pytest.mark.parametrize("name", list(aliases()))
def test_an_alias_is_complete(name: str):
    alias = aliases()[name]
    assert alias.name == name
    assert parse_hub_name(name) == HubName(alias.repo, alias.revision) == parse_hub_name(alias.repo)
    assert alias.licence
    assert alias.gated == alias.repo.startswith(("meta-llama/", "mistralai/"))


@pytest.mark.parametrize("name", list(aliases()))
def test_its_shape_is_the_presets(name: str):
    alias = aliases()[name]
    assert alias.shape in PRESETS
    assert alias.shape == name
    assert alias.config == ModelConfig.from_huggingface(preset(name))
    size = re.search(r"([\d.]+)b$", name)
    assert size is None or size[1] in re.findall(r"[\d.]+", alias.repo.lower())
