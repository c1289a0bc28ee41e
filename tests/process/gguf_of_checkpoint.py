"""A checkpoint as a GGUF file, as llama.cpp's converter writes it, by the `gguf` package."""

import json
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
}


def write_gguf_of(
    folder: Path, path: Path, kind: str = "F32", tensors_per_part: int = 0, **keys: Any
) -> Path:
    """Matrices in the type `kind`, vectors in f32; `keys` go beside those of the model ("a__b" for "a.b"). With
    `tensors_per_part` the file is split, and the first part is returned."""
    config = json.loads((folder / "config.json").read_text())
    name = config["model_type"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    tensors = {}
    for source, values in _tensors(folder):
        paired = name == "llama" and ("q_proj" in source or "k_proj" in source)
        tensors[_gguf_name(source)] = (
            np.ascontiguousarray(interleaved(values, head_dim)) if paired else values
        )
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
    return {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.dimension_count": head_dim,
        "rope.freq_base": float((config.get("rope_parameters") or config)["rope_theta"]),
    }


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
