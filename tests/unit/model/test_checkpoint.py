import json
import math
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests import mixtures
from tpiedge.errors import UserError
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.config import ModelConfig
from tpiedge.model.spec import model_spec
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import ModelSpec

Tensors = dict[str, tuple[str, list[int], int]]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def spec(small_config: dict[str, Any]) -> ModelSpec:
    return model_spec(ModelConfig.from_huggingface(small_config))


@pytest.fixture
def tensors(spec: ModelSpec) -> Tensors:
    return {name: ("F32", list(shape), 4 * math.prod(shape)) for name, shape in spec.source_shapes.items()}


@pytest.fixture
def whole(folder: Path, tensors: Tensors, make_safetensors: Callable[..., bytes]) -> Path:
    (folder / "model.safetensors").write_bytes(make_safetensors(tensors))
    return folder


@pytest.fixture
def sharded(folder: Path, tensors: Tensors, make_safetensors: Callable[..., bytes]) -> Path:
    names = list(tensors)
    weight_map = {}
    for number, part in enumerate((names[:5], names[5:]), 1):
        shard = f"model-0000{number}-of-00002.safetensors"
        (folder / shard).write_bytes(make_safetensors({name: tensors[name] for name in part}))
        weight_map |= dict.fromkeys(part, shard)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_shards_are_joined(sharded: Path, spec: ModelSpec, tensors: Tensors) -> None:
    checkpoint = Checkpoint.open(sharded)
    checkpoint.check(spec)
    assert set(checkpoint.tensors) == set(tensors)
    assert len({info.file for info in checkpoint.tensors.values()}) == 2


def test_fingerprint_depends_on_mtime_and_configs(whole: Path, small_config: dict[str, Any]) -> None:
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: os.utime(whole / "model.safetensors", ns=(1, 1)),
        lambda: (whole / "config.json").write_text(json.dumps(small_config | {"rope_theta": 5e5})),
        lambda: (whole / "generation_config.json").write_text("{}"),
    ]
    seen = set()
    for change in changes:
        change()
        seen.add(Checkpoint.open(whole).fingerprint)
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("name", "tensor", "named"),
    [
        ("lm_head.weight", None, "tensor lm_head.weight is missing"),
        (
            "model.layers.1.mlp.down_proj.weight",
            None,
            "tensor model.layers.1.mlp.down_proj.weight is missing",
        ),
        (
            "model.norm.weight",
            ("F32", [15], 60),
            r"model\.norm\.weight has shape 15, config\.json asks for 16",
        ),
    ],
)
def test_missing_or_misshapen_tensor_is_named(
    folder: Path, spec: ModelSpec, tensors: Tensors, make_safetensors: Any, name: str, tensor: Any, named: str
) -> None:
    found = {one: value for one, value in (tensors | {name: tensor}).items() if value}
    (folder / "model.safetensors").write_bytes(make_safetensors(found))
    with pytest.raises(UserError, match=named):
        Checkpoint.open(folder).check(spec)


def index_of(shard: object) -> str:
    return json.dumps({"weight_map": {"model.norm.weight": shard}})


PICKLE = "cos\nsystem\n(S'touch /tmp/x'\ntR."


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        (INDEX, index_of("../model.safetensors"), "not a plain file name"),
        (INDEX, index_of("/etc/passwd.safetensors"), "not a plain file name"),
        (INDEX, index_of("a/../../x.safetensors"), "not a plain file name"),
        (INDEX, index_of("a\\b.safetensors"), "not a plain file name"),
        (INDEX, index_of("x\0.safetensors"), "not a plain file name"),
        (INDEX, index_of("x\n.safetensors"), "not a plain file name"),
        (INDEX, index_of("a" * 300 + ".safetensors"), "not a plain file name"),
        (INDEX, index_of("pytorch_model.bin"), "not a .safetensors file"),
        (INDEX, index_of(".."), "not a .safetensors file"),
        (INDEX, index_of(7), "not a .safetensors file"),
        (INDEX, index_of(None), "not a .safetensors file"),
        (INDEX, index_of("absent.safetensors"), "has no absent.safetensors"),
        (INDEX, "{}", "weight_map is missing"),
        (INDEX, '{"weight_map": {}}', "weight_map is missing"),
        (INDEX, '{"weight_map": []}', "weight_map is missing"),
        (INDEX, '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "occurs twice"),
        (INDEX, "{", "not valid JSON"),
        ("pytorch_model.bin", PICKLE, "pickle"),
        ("consolidated.00.pth", PICKLE, "pickle"),
        ("model-q4.gguf", PICKLE, "GGUF"),
        ("MODEL-Q4.GGUF", PICKLE, "GGUF"),
        ("README.md", PICKLE, "neither"),
    ],
)
def test_hostile_index_or_foreign_format_is_refused(folder: Path, name: str, text: str, named: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(UserError, match=named) as raised:
        Checkpoint.open(folder)
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("change", [None, 0, 16 * 300 * 4 - 1])
def test_a_tied_head_that_differs_is_refused(
    whole: Path, tensors: Tensors, small_config: dict[str, Any], change: int | None
) -> None:
    """Transformers does not tie such a head; many checkpoints hold a copy of the embedding."""
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


def test_tied_model_may_store_only_its_head(
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
def test_model_without_head_needs_tied_embeddings(
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


def test_stacked_experts_are_those_of_the_files_by_expert(tmp_path: Path) -> None:
    random, by_expert, stacked = np.random.default_rng(5), dict[str, np.ndarray](), dict[str, np.ndarray]()
    for name, shape in mixtures.SPEC.source_shapes.items():
        by_expert[name] = random.standard_normal(shape).astype(np.float32)
    for name, values in by_expert.items():
        if ".experts." not in name:
            stacked[name] = values
    for layer in (0, 2, 3):
        place = f"model.layers.{layer}.mlp.experts"

        def stack(matrix: str, place: str = place) -> np.ndarray:
            names = (f"{place}.{expert}.{matrix}_proj.weight" for expert in range(mixtures.COUNT))
            return np.stack([by_expert[name] for name in names])

        stacked[f"{place}.gate_up_proj"] = np.concatenate((stack("gate"), stack("up")), 1)
        stacked[f"{place}.down_proj"] = stack("down")
    found = []
    for number, tensors in enumerate((by_expert, stacked)):
        folder = tmp_path / str(number)
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(mixtures.VALUES))
        checkpoint = Checkpoint.open(folder)
        checkpoint.check(mixtures.SPEC)
        with closing(TensorSource(checkpoint.tensors)) as source:
            found.append({name: source.read(name) for name in mixtures.SPEC.source_shapes})
    for name, values in found[0].items():
        np.testing.assert_array_equal(found[1][name], values, err_msg=name)
    stacked["model.layers.0.mlp.experts.down_proj"] = stacked["model.layers.0.mlp.experts.down_proj"][:4]
    save_file(stacked, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"experts\.0\.down_proj\.weight is missing"):
        Checkpoint.open(folder).check(mixtures.SPEC)
