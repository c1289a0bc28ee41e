"""A checkpoint as a GGUF file, as llama.cpp's converter writes it, by the `gguf` package."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from tests.unit.model.gguf_files import interleaved, write_gguf

Array = np.ndarray[Any, np.dtype[Any]]

_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_ARCHITECTURES = {"olmo3": "olmo2", "mixtral": "llama", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss"}
_EXPERT = re.compile(r"model\.layers\.(\d+)\.\w+\.experts\.(\d+)\.(\w+)\.weight")
_PARTS = {"w1": "gate", "w2": "down", "w3": "up"}
#: Beside _NAMES: names in files of an architecture.
_OWN_NAMES = {name: {"post_attention_layernorm": "post_attention_norm"} for name in ("olmo2", "gpt-oss")}


def write_gguf_of(
    folder: Path,
    path: Path,
    kind: str = "F32",
    tensors_per_part: int = 0,
    *,
    split: bool = False,
    **keys: Any,
) -> Path:
    """Matrices in the type `kind`, vectors in f32; `keys` go beside those of the model ("a__b" for "a.b"). With
    `tensors_per_part` the file is split, and the first part is returned. With `split` fused q, k and v are apart."""
    config = json.loads((folder / "config.json").read_text())
    name = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    tensors, experts = {}, dict[str, dict[int, Array]]()
    for source, values in _tensors(folder):
        if found := _EXPERT.fullmatch(source):
            layer, expert, matrix = found.groups()
            part = _PARTS.get(matrix, matrix.removesuffix("_proj"))
            experts.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", {})[int(expert)] = values
            continue
        if name == "gpt-oss" and (own := dict(_of_gpt_oss(source, values))):
            tensors |= own
            continue
        paired = name == "llama" and ("q_proj" in source or "k_proj" in source)
        tensors[_gguf_name(source, name)] = (
            np.ascontiguousarray(interleaved(values, head_dim)) if paired else values
        )
    for stack, own in experts.items():
        tensors[stack] = np.stack([own[expert] for expert in range(len(own))])
    if split:
        tensors = dict(_apart(tensors, config, head_dim))
    for key, factors in (("short", "short_factor"), ("long", "long_factor")):
        if values := (config.get("rope_parameters") or {}).get(factors):
            tensors[f"rope_factors_{key}.weight"] = np.array(values, np.float32)
    metadata = _metadata(config, head_dim)
    return write_gguf(
        path,
        name,
        {f"{name}.{key}": value for key, value in metadata.items()}
        | {f"tokenizer.{key.replace('__', '.')}": value for key, value in keys.items()},
        tensors,
        lambda _, values: "F32" if values.ndim == 1 else kind,
        tensors_per_part,
    )


def _metadata(config: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """Key, without the architecture -> value."""
    rope = config.get("rope_parameters") or config
    full = rope.get("full_attention", rope)
    found = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.dimension_count": int(head_dim * full.get("partial_rotary_factor", 1)),
        "rope.freq_base": float(full["rope_theta"]),
    }
    if config["model_type"] == "olmo3":
        found |= {
            "attention.sliding_window": config["sliding_window"],
            "attention.sliding_window_pattern": [
                kind == "sliding_attention" for kind in config["layer_types"]
            ],
            "rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
        }
    if count := config.get("num_experts", config.get("num_local_experts")):
        found |= {"expert_count": count, "expert_used_count": config["num_experts_per_tok"]}
    if config["model_type"] == "phi3":
        original = config["original_max_position_embeddings"]
        scale = config["max_position_embeddings"] / original
        found["rope.scaling.original_context_length"] = original
        found["attention.sliding_window"] = config["sliding_window"] or 0
        if full["rope_type"] == "longrope":
            found["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original))
    if full.get("rope_type") == "yarn":
        found |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": full["factor"],
            "rope.scaling.original_context_length": full["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": full["beta_fast"],
            "rope.scaling.yarn_beta_slow": full["beta_slow"],
        }
        if factor := full.get("attention_factor"):
            found["rope.scaling.yarn_attn_factor"] = factor
    if config["model_type"] == "gpt_oss":
        found |= {
            "attention.sliding_window": config["sliding_window"],
            "expert_feed_forward_length": config["intermediate_size"],
        }
    return found


def _of_gpt_oss(source: str, values: Array) -> Iterator[tuple[str, Array]]:
    """Yields the tensors of a file that have the numbers of one that gpt-oss has in another form."""
    layer, _, name = source.removeprefix("model.layers.").partition(".")
    if name == "self_attn.sinks":
        yield f"blk.{layer}.attn_sinks.weight", values
    if not name.startswith("mlp.experts."):
        return
    name = name.removeprefix("mlp.experts.")
    kind = "bias" if name.endswith("_bias") else "weight"
    rows = values if kind == "bias" else values.swapaxes(1, 2)
    turns = {"gate": rows[:, 0::2], "up": rows[:, 1::2]} if name.startswith("gate_up") else {"down": rows}
    for part, own in turns.items():
        yield f"blk.{layer}.ffn_{part}_exps.{kind}", np.ascontiguousarray(own)


def _apart(
    tensors: Mapping[str, Array], config: dict[str, Any], head_dim: int
) -> Iterator[tuple[str, Array]]:
    for name, values in tensors.items():
        if "attn_qkv" not in name:
            yield name, values
            continue
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        cuts = [heads * head_dim, (heads + kv_heads) * head_dim]
        for part, own in zip("qkv", np.split(values, cuts), strict=True):
            yield name.replace("qkv", part), own


def _tensors(folder: Path) -> list[tuple[str, Array]]:
    found = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found += [(name, file.get_tensor(name).float().numpy()) for name in file.keys()]  # noqa: SIM118
    return found


def _gguf_name(source: str, architecture: str) -> str:
    base, _, kind = source.removeprefix("model.").rpartition(".")
    if not base.startswith("layers."):
        return f"{_NAMES[base]}.{kind}"
    _, layer, inner = base.split(".", 2)
    names = _NAMES | _OWN_NAMES.get(architecture, {})
    return f"blk.{layer}.{names[inner]}.{kind}"
