"""A checkpoint as a GGUF file, as llama.cpp's converter writes it, by the `gguf` package."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors import safe_open

from tpiedge.model.rope import RopeConfig, rope_frequencies

__all__ = ["write_gguf_of"]

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
}


def write_gguf_of(folder: Path, path: Path, kind: str = "F32", **keys: Any) -> Path:
    """Matrices in the type `kind`, vectors in f32; `keys` go beside those of the model."""
    config = json.loads((folder / "config.json").read_text())
    name = config["model_type"]
    writer = GGUFWriter(path, name)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(head_dim)
    _add_rope(writer, config, head_dim)
    for key, value in keys.items():
        _add(writer, f"tokenizer.{key}", value)
    for source, values in _tensors(folder):
        if name == "llama" and ("q_proj" in source or "k_proj" in source):
            pairs = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
            values = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
        _add_tensor(writer, _gguf_name(source), values, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_rope(writer: GGUFWriter, config: dict[str, Any], head_dim: int) -> None:
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    writer.add_rope_freq_base(theta)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif kind == "llama3":
        plain = RopeConfig("default", theta, 1, 1)
        slowed = RopeConfig(
            "llama3", theta, 1, rope["original_max_position_embeddings"], factor=rope["factor"]
        )
        divisors = rope_frequencies(plain, head_dim, 1)[0] / rope_frequencies(slowed, head_dim, 1)[0]
        writer.add_tensor("rope_freqs.weight", divisors.astype(np.float32))
    else:
        assert kind == "default", kind


def _tensors(folder: Path) -> list[tuple[str, Array]]:
    found = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found += [(name, file.get_tensor(name).float().numpy()) for name in file.keys()]  # noqa: SIM118
    return found


def _gguf_name(source: str) -> str:
    base, _, kind = source.removeprefix("model.").rpartition(".")
    if not base.startswith("layers."):
        return f"{_NAMES[base]}.{kind}"
    _, layer, inner = base.split(".", 2)
    return f"blk.{layer}.{_NAMES[inner]}.{kind}"


def _add_tensor(writer: GGUFWriter, name: str, values: Array, kind: str) -> None:
    if values.ndim == 1 or kind == "F32":
        writer.add_tensor(name, values)
    else:
        quantised = GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(values, quantised), raw_dtype=quantised)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    key = key.replace("__", ".")
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
