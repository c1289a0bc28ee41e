"""Checkpoints as the GPTQ and AWQ libraries write them, from codes, zero points and scales."""

import json
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import torch as safetensors_torch
from safetensors.numpy import save_file

from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.spec import model_spec
from tpiedge.pack.export import export_safetensors
from tpiedge.pack.reader import Pack
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import Precision
from tpiedge.pack.writer import write_pack

Array = np.ndarray[Any, np.dtype[Any]]

# The place in a word (four bits each) of eight neighbouring outputs of AWQ, from the first output on.
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass
class Matrix:
    """codes [I, O] (0 to 15), zeros [G, O] and scales [G, O]; the group of each input."""

    codes: Array
    zeros: Array
    scales: Array
    groups: Array

    def values(self) -> Array:
        """f32 [O, I], number by number."""
        integers = self.codes.astype(np.int64) - self.zeros[self.groups].astype(np.int64)
        return (integers.astype(np.float32) * self.scales[self.groups].astype(np.float32)).T

    def gptq(self, zero_offset: int) -> dict[str, Array]:
        return {
            "qweight": _words(self.codes.T, range(8)).T,
            "qzeros": _words(self.zeros - zero_offset, range(8)),
            "scales": self.scales,
            "g_idx": self.groups.astype(np.int32),
        }

    def awq(self) -> dict[str, Array]:
        return {
            "qweight": _words(self.codes, _AWQ_PLACES),
            "qzeros": _words(self.zeros, _AWQ_PLACES),
            "scales": self.scales,
        }


def _words(codes: Array, places: Any) -> Array:
    """[rows, 8 n] -> int32 [rows, n]: code k of a word at place places[k]."""
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint64)
    for k, place in enumerate(places):
        words |= (codes[:, k::8].astype(np.uint64) & np.uint64(15)) << np.uint64(4 * place)
    return words.astype(np.uint32).view(np.int32)


@dataclass
class Int4Checkpoint:
    """A small llama to write, or a Qwen 3 with experts. `quantization` is added to config.json's
    quantization_config."""

    method: str = "gptq"
    group: int = 32
    symmetric: bool = False
    act_order: bool = False
    zero_offset: int = 1
    hidden: int = 64
    heads: int = 2
    head_dim: int = 32
    ffn: int = 160
    vocab: int = 300
    scale_dtype: Any = np.float16
    quantization: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    #: Experts of `ffn` columns in place of the FFN, two for a token. Their router is not quantised.
    experts: int = 0

    def write(self, folder: Path) -> dict[str, Array]:
        """Returns the checkpoint's numbers, f32."""
        folder.mkdir()
        random = np.random.default_rng(self.seed)
        queries = self.heads * self.head_dim
        numbers: dict[str, Array] = {}
        stored: dict[str, Array] = {}
        shapes = {
            "self_attn.q_proj": (queries, self.hidden),
            "self_attn.k_proj": (queries, self.hidden),
            "self_attn.v_proj": (queries, self.hidden),
            "self_attn.o_proj": (self.hidden, queries),
        }
        places = [f"mlp.experts.{expert}" for expert in range(self.experts)] or ["mlp"]
        for place in places:
            shapes |= {f"{place}.{name}_proj": (self.ffn, self.hidden) for name in ("gate", "up")}
            shapes[f"{place}.down_proj"] = (self.hidden, self.ffn)
        for name, shape in shapes.items():
            matrix = self._matrix(random, *shape)
            name = f"model.layers.0.{name}"
            parts = matrix.awq() if self.method == "awq" else matrix.gptq(self.zero_offset)
            stored |= {f"{name}.{part}": np.ascontiguousarray(values) for part, values in parts.items()}
            numbers[f"{name}.weight"] = matrix.values()
        plain: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.hidden),
            "lm_head.weight": (self.vocab, self.hidden),
            "model.norm.weight": (self.hidden,),
            "model.layers.0.input_layernorm.weight": (self.hidden,),
            "model.layers.0.post_attention_layernorm.weight": (self.hidden,),
        }
        if self.experts:
            plain["model.layers.0.mlp.gate.weight"] = (self.experts, self.hidden)
            plain |= {f"model.layers.0.self_attn.{name}_norm.weight": (self.head_dim,) for name in "qk"}
        for name, size in plain.items():
            stored[name] = (random.standard_normal(size) / 8 + (len(size) == 1)).astype(np.float16)
            numbers[name] = stored[name].astype(np.float32)
        save_file(stored, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config()))
        return numbers

    def config(self) -> dict[str, Any]:
        how: dict[str, Any] = {"quant_method": self.method, "bits": 4, "group_size": self.group}
        if self.method == "awq":
            how |= {"version": "gemm", "zero_point": not self.symmetric}
        else:
            how |= {"sym": self.symmetric, "desc_act": self.act_order}
        family = ("Qwen3MoeForCausalLM", "qwen3_moe") if self.experts else ("LlamaForCausalLM", "llama")
        of_experts = {
            "moe_intermediate_size": self.ffn,
            "num_experts": self.experts,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
        }
        return {
            "architectures": [family[0]],
            "model_type": family[1],
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": 1,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5,
            "torch_dtype": "float16",
            "tie_word_embeddings": False,
            "quantization_config": how | self.quantization,
            **(of_experts if self.experts else {}),
        }

    def _matrix(self, random: np.random.Generator, outputs: int, inputs: int) -> Matrix:
        group = inputs if self.group == -1 else self.group
        groups = -(-inputs // group)
        of_input = np.arange(inputs) // group
        if self.act_order:
            of_input = random.permutation(of_input)
        low = 0 if self.method == "awq" or self.zero_offset == 0 else 1
        zeros = random.integers(low, 16, (groups, outputs))
        return Matrix(
            random.integers(0, 16, (inputs, outputs)),
            np.full_like(zeros, 8) if self.symmetric else zeros,
            random.uniform(0.001, 0.1, (groups, outputs)).astype(self.scale_dtype),
            of_input,
        )


def packed(folder: Path, precision: Precision | None = None) -> tuple[Pack, dict[str, Array]]:
    """Returns the pack of a checkpoint, and the tensors that `unpack` writes of it, as f32."""
    checkpoint = Checkpoint.open(folder)
    spec = model_spec(checkpoint.config)
    checkpoint.check(spec)
    with closing(TensorSource(checkpoint.tensors)) as source:
        write_pack(spec, source, checkpoint.storage(precision), folder / "pack")
    pack = Pack.open(folder / "pack")
    export_safetensors(pack, folder / "back")
    tensors = safetensors_torch.load_file(folder / "back" / "model.safetensors")
    return pack, {name: tensor.float().numpy() for name, tensor in tensors.items()}
