"""Checkpoints of gpt-oss, in plain numbers or with experts in MXFP4, as they are published."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Array = np.ndarray[Any, np.dtype[Any]]

_STACKS = ("gate_up_proj", "down_proj")


@dataclass
class GptOssCheckpoint:
    """A small model to write. `config` replaces keys of config.json."""

    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 160
    layers: int = 2
    experts: int = 3
    vocab: int = 300
    config: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def write(self, folder: Path, *, mxfp4: bool) -> dict[str, Array]:
        """Returns the tensors of the plain form, f32."""
        folder.mkdir()
        stored, plain = self._tensors(), dict[str, Array]()
        for name, values in stored.items():
            if values.dtype == np.float32:
                plain[name] = values
            elif name.endswith("_blocks"):
                base = name.removesuffix("_blocks")
                plain[base] = self._numbers(values, stored[f"{base}_scales"])
        save_file(stored if mxfp4 else plain, folder / "model.safetensors")
        config = self.values() | ({"quantization_config": {"quant_method": "mxfp4"}} if mxfp4 else {})
        (folder / "config.json").write_text(json.dumps(config | self.config))
        return plain

    def values(self) -> dict[str, Any]:
        return {
            "architectures": ["GptOssForCausalLM"],
            "model_type": "gpt_oss",
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "num_local_experts": self.experts,
            "num_experts_per_tok": 2,
            "vocab_size": self.vocab,
            "max_position_embeddings": 128,
            "sliding_window": 8,
            "dtype": "float32",
        }

    def _tensors(self) -> dict[str, Array]:
        random = np.random.default_rng(self.seed)

        def numbers(*shape: int, mean: float = 0.0) -> Array:
            return (mean + random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

        def blocks(outputs: int, inputs: int) -> tuple[Array, Array]:
            shape = self.experts, outputs, inputs // 32
            codes = random.integers(0, 256, (*shape, 16)).astype(np.uint8)
            return codes, random.integers(120, 125, shape).astype(np.uint8)

        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found = {
            "model.embed_tokens.weight": numbers(self.vocab, self.hidden),
            "lm_head.weight": numbers(self.vocab, self.hidden),
            "model.norm.weight": numbers(self.hidden, mean=1),
        }
        for layer in range(self.layers):
            sizes = {"q": (queries, self.hidden), "k": (keys, self.hidden), "v": (keys, self.hidden)}
            part = {"self_attn.sinks": numbers(self.heads), "self_attn.o_proj.bias": numbers(self.hidden)}
            part["self_attn.o_proj.weight"] = numbers(self.hidden, queries)
            for name, shape in sizes.items():
                part[f"self_attn.{name}_proj.weight"] = numbers(*shape)
                part[f"self_attn.{name}_proj.bias"] = numbers(shape[0])
            for name in ("input", "post_attention"):
                part[f"{name}_layernorm.weight"] = numbers(self.hidden, mean=1)
            part["mlp.router.weight"] = numbers(self.experts, self.hidden)
            part["mlp.router.bias"] = numbers(self.experts)
            outputs = {"gate_up_proj": 2 * self.ffn, "down_proj": self.hidden}
            for name, inputs in zip(_STACKS, (self.hidden, self.ffn), strict=True):
                place = f"mlp.experts.{name}"
                part[f"{place}_blocks"], part[f"{place}_scales"] = blocks(outputs[name], inputs)
                part[f"{place}_bias"] = numbers(self.experts, outputs[name])
            found |= {f"model.layers.{layer}.{name}": values for name, values in part.items()}
        return found

    def _numbers(self, blocks: Array, scales: Array) -> Array:
        """Returns [experts, inputs, outputs], as transformers reads them, but with 0 for -0."""
        import torch
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        parts = torch.from_numpy(blocks), torch.from_numpy(scales)
        found: Array = convert_moe_packed_tensors(*parts, dtype=torch.float32).numpy()
        return found + np.float32(0)
