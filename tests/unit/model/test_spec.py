from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tpiedge.errors import UserError
from tpiedge.lab.random_weights import RandomSource
from tpiedge.model.config import ModelConfig
from tpiedge.model.spec import config_of_pack, model_spec
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import Precision, columns_source, stack_source, whole_source
from tpiedge.pack.writer import write_pack

GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text", "num_hidden_layers": 4, "head_dim": 6, "global_head_dim": 12, "rope_parameters": None,
    "hidden_size_per_layer_input": 10, "vocab_size_per_layer_input": 300, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
CASES: list[dict[str, Any]] = [
    {},
    {"attention_bias": True, "mlp_bias": True},
    {"tie_word_embeddings": True, "head_dim": 6},
    {"model_type": "mistral"},
    {"model_type": "qwen2"},
    {"model_type": "qwen3", "head_dim": 8, "attention_bias": True},
    GEMMA4,
    GEMMA4 | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0},
    GEMMA4 | {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 7},
    GEMMA4 | {"attention_k_eq_v": True, "attention_bias": True, "model_type": "gemma4_unified_text"},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_tensors_are_those_of_transformers(small_config: dict[str, Any], changes: dict[str, Any]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    values = small_config | changes
    spec = model_spec(ModelConfig.from_huggingface(values))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values))
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if spec.tied:
        del expected["lm_head.weight"]
    assert stacked(spec.source_shapes) == expected


def stacked(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of whole tensors, each of which has matrices of all experts."""
    found: dict[str, tuple[int, ...]] = {}
    for source, shape in shapes.items():
        matrix, rows = whole_source(source)
        if item := stack_source(matrix):
            found[item.tensor] = int(item.item) + 1, rows.stop if rows else shape[0], shape[1]
        else:
            found[source] = shape
    return found


@pytest.mark.parametrize("change", [{}, {"hidden_size": 32, "head_dim": 4}, {"num_key_value_heads": 1}])
def test_pack_matrices_must_match_its_config(
    tmp_path: Path, small_config: dict[str, Any], change: dict[str, Any]
) -> None:
    said = ModelConfig.from_huggingface(small_config | change)
    spec = replace(model_spec(ModelConfig.from_huggingface(small_config)), config=said.to_json())
    write_pack(spec, RandomSource.for_spec(0, spec, "F32"), Precision.F32, tmp_path / "pack")
    pack = Pack.open(tmp_path / "pack")
    if not change:
        assert config_of_pack(pack) == said
        return
    with pytest.raises(UserError, match="not those of its model config: pack again"):
        config_of_pack(pack)


def test_sources_of_a_hostile_pack_name_no_part_of_a_tensor() -> None:
    number = "1" * 5000  # int() refuses it
    for source in ("x[0,:,0::0].T", "x[:,0::0]", f"x[{number},:,0::2].T", f"x[{number}]"):
        assert columns_source(source) is stack_source(source) is None
