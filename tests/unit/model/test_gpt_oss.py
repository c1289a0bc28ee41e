"""gpt-oss: its config, its checkpoints in plain numbers and in MXFP4, and their packs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.unit.model.gguf_files import TinyGguf, dequantised
from tests.unit.model.int4_files import packed
from tests.unit.model.mxfp4_files import GptOssCheckpoint
from tests.unit.model.test_gguf import losses
from tests.unit.model.test_gguf import packed as packed_gguf
from tpiedge.errors import UserError
from tpiedge.model.blocks import Experts
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.config import ModelConfig
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.presets import preset
from tpiedge.model.quantisation import rounded_matrices
from tpiedge.model.spec import config_of_pack, model_spec
from tpiedge.pack.panel_writer import load_quality
from tpiedge.pack.quantised import tensor_from_json
from tpiedge.pack.source import tensor_to_json
from tpiedge.pack.specs import Precision


def test_layers_are_those_of_transformers() -> None:
    config = ModelConfig.from_huggingface(preset("gpt-oss-20b"))
    assert {one.experts for one in config.layers} == {
        Experts(32, 4, 2880, "gpt_oss", router_bias=True, bias=True)
    }
    assert [one.attention.window for one in config.layers] == [128, None] * 12
    first = config.first.attention
    assert (first.sinks, first.qkv_bias, first.o_bias, first.rope) == (True, True, True, config.rope)
    assert config.rope is not None
    assert (config.rope.kind, config.rope.theta, config.rope.factor) == ("yarn", 150000.0, 32.0)
    assert not config.rope.truncate
    assert config.context_tokens == 131072
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_missing_keys_have_the_defaults_of_transformers() -> None:
    published = preset("gpt-oss-120b")
    needed = {"architectures", "model_type", "torch_dtype", "eos_token_id"}
    short = {key: value for key, value in published.items() if key in needed}
    assert ModelConfig.from_huggingface(short) == ModelConfig.from_huggingface(published)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"swiglu_limit": 5.0}, "swiglu_limit is 5; supported is 7"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha is 1; supported is 1.702"),
        ({"num_experts_per_tok": 33}, "num_experts_per_tok is 33, but there are 32 experts"),
    ],
)
def test_other_activations_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        ModelConfig.from_huggingface(preset("gpt-oss-20b") | changes)


def test_flags_of_other_models_stay_out_of_their_packs() -> None:
    layers = ModelConfig.from_huggingface(preset("qwen3-30b-a3b")).to_json()["layers"]
    assert "sinks" not in layers[0]["attention"]
    assert set(layers[0]["experts"]) == {"count", "chosen", "columns", "activation", "normalised"}


def test_unpacked_tensors_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    plain = GptOssCheckpoint().write(tmp_path / "m", mxfp4=False)
    pack, back = packed(tmp_path / "m")
    assert pack.precision is Precision.F32
    assert config_of_pack(pack) == Checkpoint.open(tmp_path / "m").config
    assert set(back) == set(plain)
    for name, values in plain.items():
        np.testing.assert_array_equal(back[name], values, err_msg=name)


@pytest.mark.parametrize("precision", [Precision.F32, Precision.BF16, Precision.Q8])
def test_mxfp4_becomes_what_its_numbers_become(precision: Precision, tmp_path: Path) -> None:
    plain, kept = (tmp_path / "plain", tmp_path / "mxfp4")
    for folder in (plain, kept):
        GptOssCheckpoint().write(folder, mxfp4=folder == kept)
    blobs = [{blob.name for blob in packed(one, precision)[0].path.glob("blobs/*")} for one in (plain, kept)]
    assert blobs[0] == blobs[1]
    assert len(blobs[0]) == 2 * 4  # and their hashes


def test_mxfp4_is_kept(tmp_path: Path) -> None:
    plain = GptOssCheckpoint().write(tmp_path / "m", mxfp4=True)
    pack, back = packed(tmp_path / "m")
    layout = pack.layout(1)
    assert layout.experts is not None
    assert {one.precision for one in layout.experts.matrices} == {Precision.MXFP4}
    assert {one.precision for one in layout.matrices} == {Precision.Q8}
    assert set(back) == set(plain)
    for name, values in plain.items():
        if "experts" in name or values.ndim == 1 or "router" in name:
            np.testing.assert_array_equal(back[name], values, err_msg=name)
        else:
            np.testing.assert_allclose(back[name], values, atol=np.abs(values).max() / 100, err_msg=name)
    checkpoint = Checkpoint.open(tmp_path / "m")
    spec, storage = model_spec(checkpoint.config), checkpoint.storage(None)
    said = rounded_matrices(
        checkpoint.tensors, spec, storage, load_quality(pack.path), checkpoint.quantisation
    )
    assert list(said) == [
        "1 matrix of F32 is rounded to bf16",
        "9 matrices of F32 are rounded to q8 (46 dB)",
    ]


def test_tensors_cross_to_another_process(tmp_path: Path) -> None:
    for mxfp4 in (False, True):
        folder = tmp_path / str(mxfp4)
        GptOssCheckpoint().write(folder, mxfp4=mxfp4)
        for name, tensor in Checkpoint.open(folder).tensors.items():
            sent = json.loads(json.dumps(tensor_to_json(tensor, str)))
            assert tensor_from_json(sent) == tensor, name


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        (
            "gate_up_proj_blocks",
            lambda one: one[:2],
            "gate_up_proj_blocks is U8 of the shape 2 x 320 x 2 x 16, not",
        ),
        ("gate_up_proj_scales", lambda one: one.astype(np.int32), "gate_up_proj_scales is I32 of the shape"),
        ("down_proj_blocks", lambda one: one[:, :-1], "down_proj_blocks is U8 of the shape"),
        ("gate_up_proj_bias", lambda one: one[:, 1:], "gate_up_proj_bias is F32 of the shape 3 x 319, not"),
        ("down_proj_bias", lambda one: one[1:], "down_proj_bias has shape 2 x 64"),
        ("down_proj_scales", None, r"down_proj\[0,:,0::1\].T is missing"),
    ],
)
def test_damaged_parts_are_refused(name: str, change: Any, complaint: str, tmp_path: Path) -> None:
    GptOssCheckpoint().write(tmp_path / "m", mxfp4=True)
    path = tmp_path / "m" / "model.safetensors"
    tensors = load_file(path)
    own = tensors.pop(f"model.layers.0.mlp.experts.{name}")
    if change is not None:
        tensors[f"model.layers.0.mlp.experts.{name}"] = np.ascontiguousarray(change(own))
    save_file(tensors, path)
    with pytest.raises(UserError, match=complaint):
        packed(tmp_path / "m")


def test_scales_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    GptOssCheckpoint().write(tmp_path / "m", mxfp4=True)
    path = tmp_path / "m" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.experts.down_proj_scales"][1, 3, 2] = 255
    save_file(tensors, path)
    with pytest.raises(UserError, match="cannot be kept as mxfp4: a scale is NaN or infinite"):
        packed(tmp_path / "m")


def test_gguf_keeps_its_numbers(tmp_path: Path) -> None:
    kinds = {"": "Q8_0", "_exps": "MXFP4", "ffn_gate_inp": "F32", "token_embd": "BF16"}
    keys = {
        "expert_count": 5,
        "expert_used_count": 2,
        "expert_feed_forward_length": 160,
        "attention.sliding_window": 8,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 64,
    }
    named = {f"gpt-oss.{key}": value for key, value in keys.items()}
    path = TinyGguf("gpt-oss", kinds=kinds, keys=named, experts=5).write(tmp_path / "f.gguf")
    model = GgufModel.open(path)
    config = model.config
    assert config.first.experts == Experts(5, 2, 160, "gpt_oss", router_bias=True, bias=True)
    assert [one.attention.window for one in config.layers] == [8, None]
    assert config.rope is not None
    assert not config.rope.truncate
    pack, back = packed_gguf(path, None, tmp_path)
    assert losses(model, load_quality(pack.path)) == []
    stored = dequantised(path)
    place = "model.layers.1.mlp.experts"
    for kind, suffix in (("weight", ""), ("bias", "_bias")):
        gate, up, down = (stored[f"blk.1.ffn_{part}_exps.{kind}"] for part in ("gate", "up", "down"))
        both = np.stack((gate, up), 2).reshape(5, 320, *gate.shape[2:])
        if kind == "weight":
            both, down = both.swapaxes(1, 2), down.swapaxes(1, 2)
        np.testing.assert_array_equal(back[f"{place}.gate_up_proj{suffix}"], both)
        np.testing.assert_array_equal(back[f"{place}.down_proj{suffix}"], down)
    for name, ours in {
        "attn_sinks.weight": "self_attn.sinks",
        "post_attention_norm.weight": "post_attention_layernorm.weight",
        "ffn_gate_inp.weight": "mlp.router.weight",
        "ffn_gate_inp.bias": "mlp.router.bias",
        "attn_output.bias": "self_attn.o_proj.bias",
    }.items():
        np.testing.assert_array_equal(back[f"model.layers.1.{ours}"], stored[f"blk.1.{name}"])
