"""Checkpoint folders: whole, sharded, cached, incomplete and hostile."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tpiedge.errors import UserError
from tpiedge.model.checkpoint import Checkpoint, sources_of
from tpiedge.model.config import ModelConfig
from tpiedge.model.spec import model_spec
from tpiedge.pack.specs import ModelSpec

Tensors = dict[str, tuple[str, list[int], int]]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def spec(small_config: dict[str, Any]) -> ModelSpec:
    return model_spec(ModelConfig.from_huggingface(small_config))


@pytest.fixture
def tensors(spec: ModelSpec) -> Tensors:
    """What the checkpoint of the small model holds."""
    return {name: ("F32", list(shape), 4 * math.prod(shape)) for name, shape in sources_of(spec)}


def write_index(folder: Path, weight_map: Mapping[str, object]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))


@pytest.fixture
def whole(folder: Path, tensors: Tensors, make_safetensors: Callable[..., bytes]) -> Path:
    """A folder with one weights file."""
    (folder / "model.safetensors").write_bytes(make_safetensors(tensors))
    return folder


@pytest.fixture
def sharded(folder: Path, tensors: Tensors, make_safetensors: Callable[..., bytes]) -> Path:
    """A folder with two weights files and their index."""
    names = list(tensors)
    weight_map = {}
    for number, part in enumerate((names[:5], names[5:]), 1):
        shard = f"model-0000{number}-of-00002.safetensors"
        (folder / shard).write_bytes(make_safetensors({name: tensors[name] for name in part}))
        weight_map |= dict.fromkeys(part, shard)
    write_index(folder, weight_map)
    return folder


def refuse(folder: Path, named: str) -> None:
    with pytest.raises(UserError, match=named) as raised:
        Checkpoint.open(folder)
    assert str(raised.value).isprintable()


def test_shards_are_joined(sharded: Path, spec: ModelSpec, tensors: Tensors) -> None:
    checkpoint = Checkpoint.open(sharded)
    checkpoint.check(spec)
    assert set(checkpoint.tensors) == set(tensors)
    assert len({info.file for info in checkpoint.tensors.values()}) == 2


class TestFingerprint:
    def test_follows_config_time_and_size(self, whole: Path, small_config: dict[str, Any]) -> None:
        seen = {Checkpoint.open(whole).fingerprint}
        os.utime(whole / "model.safetensors", ns=(1, 1))
        seen.add(Checkpoint.open(whole).fingerprint)
        (whole / "config.json").write_text(json.dumps(small_config | {"rope_theta": 5e5}))
        seen.add(Checkpoint.open(whole).fingerprint)
        (whole / "generation_config.json").write_text("{}")
        seen.add(Checkpoint.open(whole).fingerprint)
        assert len(seen) == 4


class TestCheck:
    def write(self, folder: Path, data: bytes) -> Checkpoint:
        (folder / "model.safetensors").write_bytes(data)
        return Checkpoint.open(folder)

    @pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.1.mlp.down_proj.weight"])
    def test_missing_tensor_is_named(
        self, folder: Path, spec: ModelSpec, tensors: Tensors, make_safetensors: Any, name: str
    ) -> None:
        del tensors[name]
        with pytest.raises(UserError, match=f"tensor {name} is missing"):
            self.write(folder, make_safetensors(tensors)).check(spec)

    def test_wrong_shape_is_named(
        self, folder: Path, spec: ModelSpec, tensors: Tensors, make_safetensors: Any
    ) -> None:
        tensors["model.norm.weight"] = ("F32", [15], 60)
        with pytest.raises(UserError, match=r"model\.norm\.weight has shape 15, config\.json asks for 16"):
            self.write(folder, make_safetensors(tensors)).check(spec)


@pytest.mark.parametrize(
    ("shard", "named"),
    [
        ("../model.safetensors", "not a plain file name"),
        ("/etc/passwd.safetensors", "not a plain file name"),
        ("a/../../x.safetensors", "not a plain file name"),
        ("a\\b.safetensors", "not a plain file name"),
        ("x\0.safetensors", "not a plain file name"),
        ("x\n.safetensors", "not a plain file name"),
        ("a" * 300 + ".safetensors", "not a plain file name"),
        ("pytorch_model.bin", "not a .safetensors file"),
        ("..", "not a .safetensors file"),
        (7, "not a .safetensors file"),
        (None, "not a .safetensors file"),
        ("absent.safetensors", "has no absent.safetensors"),
    ],
)
def test_hostile_shard_names_are_refused(folder: Path, shard: object, named: str) -> None:
    write_index(folder, {"model.norm.weight": shard})
    refuse(folder, named)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{}", "weight_map is missing"),
        ('{"weight_map": {}}', "weight_map is missing"),
        ('{"weight_map": []}', "weight_map is missing"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "occurs twice"),
        ("{", "not valid JSON"),
    ],
)
def test_broken_index_is_refused(folder: Path, text: str, named: str) -> None:
    (folder / INDEX).write_text(text)
    refuse(folder, named)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("pytorch_model.bin", "pickle"),
        ("consolidated.00.pth", "pickle"),
        ("model-q4.gguf", "GGUF"),
        ("MODEL-Q4.GGUF", "GGUF"),
        ("README.md", "neither"),
    ],
)
def test_other_formats_are_refused_with_advice(folder: Path, name: str, named: str) -> None:
    (folder / name).write_bytes(b"cos\nsystem\n(S'touch /tmp/x'\ntR.")
    refuse(folder, named)


@pytest.mark.parametrize("change", [None, 0, 16 * 300 * 4 - 1])
def test_a_tied_head_that_differs_is_refused(
    whole: Path, tensors: Tensors, small_config: dict[str, Any], change: int | None
) -> None:
    """As transformers, which then does not tie; a copy of the embedding is what many checkpoints hold."""
    (whole / "config.json").write_text(json.dumps(small_config | {"tie_word_embeddings": True}))
    checkpoint = Checkpoint.open(whole)
    if change is not None:
        with (whole / "model.safetensors").open("r+b") as file:
            file.seek(checkpoint.tensors["lm_head.weight"].offset + change)
            file.write(b"x")
    if change is None:
        checkpoint.check(model_spec(checkpoint.config))
    else:
        with pytest.raises(UserError, match="write false for tie_word_embeddings"):
            checkpoint.check(model_spec(checkpoint.config))


def test_a_tied_model_may_have_its_embedding_as_the_head(
    folder: Path, tensors: Tensors, small_config: dict[str, Any], make_safetensors: Callable[..., bytes]
) -> None:
    (folder / "config.json").write_text(json.dumps(small_config | {"tie_word_embeddings": True}))
    alone = {name: one for name, one in tensors.items() if name != "model.embed_tokens.weight"}
    (folder / "model.safetensors").write_bytes(make_safetensors(alone))
    checkpoint = Checkpoint.open(folder)
    checkpoint.check(model_spec(checkpoint.config))
    (folder / "config.json").write_text(json.dumps(small_config))
    with pytest.raises(UserError, match=r"model\.embed_tokens\.weight is missing"):
        Checkpoint.open(folder).check(model_spec(Checkpoint.open(folder).config))


@pytest.mark.parametrize("architecture", ["LlamaModel", "LlamaForCausalLM"])
def test_a_model_saved_without_its_head(
    folder: Path,
    tensors: Tensors,
    small_config: dict[str, Any],
    make_safetensors: Callable[..., bytes],
    architecture: str,
) -> None:
    config = small_config | {"architectures": [architecture]}
    bare = {name.removeprefix("model."): one for name, one in tensors.items() if name != "lm_head.weight"}
    (folder / "model.safetensors").write_bytes(make_safetensors(bare))
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    checkpoint = Checkpoint.open(folder)
    checkpoint.check(model_spec(checkpoint.config))
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"lm_head\.weight is missing .* write true for tie_word_embeddings"):
        Checkpoint.open(folder).check(model_spec(Checkpoint.open(folder).config))
    # One whose head stands beside it.
    (folder / "model.safetensors").write_bytes(
        make_safetensors(bare | {"lm_head.weight": tensors["lm_head.weight"]})
    )
    Checkpoint.open(folder).check(model_spec(checkpoint.config))
