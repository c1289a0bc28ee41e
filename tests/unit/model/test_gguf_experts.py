"""GGUF files with experts, whose matrices are stacked."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.model.gguf_files import TinyGguf, dequantised
from tests.unit.model.test_gguf import losses, packed
from tpiedge.errors import UserError
from tpiedge.model.blocks import Experts
from tpiedge.model.gguf.model import GgufModel
from tpiedge.pack.panel_writer import load_quality
from tpiedge.pack.specs import Precision


def _file(path: Path, architecture: str, kinds: dict[str, str], *, apart: bool = False, **keys: Any) -> Path:
    sizes = {"hidden": 256, "head_dim": 128, "ffn": 512, "experts": 5, "apart": apart}
    found = {"expert_count": 5, "expert_used_count": 2, **keys}
    named = {f"{architecture}.{key}": value for key, value in found.items()}
    return TinyGguf(architecture, kinds=kinds, keys=named, **sizes).write(path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("architecture", "more", "family", "normalised", "places"),
    [
        (
            "qwen3moe",
            {"feed_forward_length": 999, "expert_feed_forward_length": 512},
            "qwen3_moe",
            True,
            ("mlp", "gate_proj", "up_proj", "down_proj"),
        ),
        ("llama", {"expert_gating_func": 1}, "mixtral", True, ("block_sparse_moe", "w1", "w3", "w2")),
    ],
)
def test_every_expert_keeps_its_numbers(
    architecture: str,
    more: dict[str, Any],
    family: str,
    normalised: bool,
    places: tuple[str, ...],
    tmp_path: Path,
) -> None:
    kinds = {"": "Q4_K", "ffn_down_exps": "Q6_K", "ffn_gate_inp": "F32", "token_embd": "BF16"}
    path = _file(tmp_path / "f.gguf", architecture, kinds, **more)
    model = GgufModel.open(path)
    assert model.config.model_type == family
    assert model.config.first.experts == Experts(5, 2, 512, normalised=normalised)
    pack, back = packed(path, None, tmp_path)
    stored, (place, *names) = dequantised(path), places
    for part, name in zip(("gate", "up", "down"), names, strict=True):
        for expert in range(5):
            found = back[f"model.layers.1.{place}.experts.{expert}.{name}.weight"]
            np.testing.assert_array_equal(found, stored[f"blk.1.ffn_{part}_exps.weight"][expert])
    np.testing.assert_array_equal(
        back[f"model.layers.1.{place}.gate.weight"], stored["blk.1.ffn_gate_inp.weight"]
    )
    assert losses(model, load_quality(pack.path)) == []
    assert {matrix.precision for matrix in pack.layout(0).experts.matrices} == {
        Precision.Q4_K,
        Precision.Q6_K,
    }  # type: ignore[union-attr]


_PLAIN = {"ffn_gate_inp": "F32", "token_embd": "BF16"}


def test_layers_have_types_of_their_own_as_in_q4_k_m(tmp_path: Path) -> None:
    kinds = _PLAIN | {"": "Q4_K", "blk.1.ffn_down_exps": "Q6_K", "blk.1.attn_v": "Q6_K"}
    keys = {"expert_feed_forward_length": 512}
    path = _file(tmp_path / "f.gguf", "qwen3moe", kinds, **keys)
    pack, back = packed(path, None, tmp_path)
    stored = dequantised(path)
    for layer, down in enumerate((Precision.Q4_K, Precision.Q6_K)):
        experts = pack.layout(layer).experts
        assert experts is not None
        assert [one.precision for one in experts.matrices] == [Precision.Q4_K, Precision.Q4_K, down]
        for expert, part in product(range(5), ("gate", "up", "down")):
            found = back[f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"]
            np.testing.assert_array_equal(found, stored[f"blk.{layer}.ffn_{part}_exps.weight"][expert])
    assert losses(GgufModel.open(path), load_quality(pack.path)) == []


def test_older_files_have_a_tensor_for_each_expert(tmp_path: Path) -> None:
    kinds = _PLAIN | {"": "Q4_K", "ffn_down": "Q6_K"}
    path = _file(tmp_path / "f.gguf", "llama", kinds, apart=True)
    pack, back = packed(path, None, tmp_path)
    stored = dequantised(path)
    for layer, expert, (part, name) in product(
        range(2), range(5), {"gate": "w1", "up": "w3", "down": "w2"}.items()
    ):
        found = back[f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}.weight"]
        np.testing.assert_array_equal(found, stored[f"blk.{layer}.ffn_{part}.{expert}.weight"])
    assert losses(GgufModel.open(path), load_quality(pack.path)) == []


def test_experts_of_unlike_types_become_q8(tmp_path: Path) -> None:
    kinds = _PLAIN | {"": "Q4_K", "blk.1.ffn_down.3": "Q6_K"}
    path = _file(tmp_path / "f.gguf", "llama", kinds, apart=True)
    model = GgufModel.open(path)
    source = "model.layers.1.block_sparse_moe.experts.{}.w2.weight"
    assert model.storage(None).kept == {source: Precision.Q8}
    pack, back = packed(path, None, tmp_path)
    stored = dequantised(path)
    for expert in range(5):
        numbers = stored[f"blk.1.ffn_down.{expert}.weight"]
        found = back[source.replace("{}", str(expert))]
        np.testing.assert_allclose(found, numbers, atol=np.abs(numbers).max() / 127)
    for said in (losses(model, None), losses(model, load_quality(pack.path))):
        assert [line.partition(" (")[0] for line in said] == [
            "4 matrices of Q4_K are rounded to q8",
            "1 matrix of Q6_K is rounded to q8",
        ]


def test_missing_expert_of_an_older_file_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden": 256, "head_dim": 128, "ffn": 512, "experts": 5, "apart": True}
    keys = {"llama.expert_count": 5, "llama.expert_used_count": 2}
    lacking = TinyGguf("llama", kinds={"": "F32"}, keys=keys, without=("blk.1.ffn_up.4.weight",), **sizes)
    with pytest.raises(UserError, match=r"the tensor blk\.1\.ffn_up\.4\.weight is missing"):
        GgufModel.open(lacking.write(tmp_path / "f.gguf"))


@pytest.mark.parametrize(
    ("architecture", "keys", "complaint"),
    [
        ("llama", {"expert_used_count": 6}, "num_experts_per_tok is 6, but there are 5 experts"),
        ("llama", {"expert_gating_func": 2}, "expert_gating_func is set, which is not supported"),
        ("llama", {"expert_weights_scale": 2.5}, "expert_weights_scale is set"),
        (
            "llama",
            {"expert_count": 4},
            "ffn_gate_inp.weight has the shape|ffn_gate_exps.weight has the shape",
        ),
        ("qwen3", {}, "mixture-of-experts models are not supported"),
    ],
)
def test_experts_of_other_kinds_are_refused(
    architecture: str, keys: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    path = _file(tmp_path / "f.gguf", architecture, {"": "F32"}, **keys)
    with pytest.raises(UserError, match=complaint):
        GgufModel.open(path)
