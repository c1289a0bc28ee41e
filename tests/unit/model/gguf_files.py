"""GGUF files of small random models, written by the `gguf` package."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from tpiedge.pack.quantised import BLOCKS

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class TinyGguf:
    """A model to write. `kinds`: the type of a matrix by a part of its name, "" for all others; `vector_kind` that of
    norms and biases. With `exact_vectors` bf16 has their numbers, too."""

    architecture: str = "llama"
    hidden: int = 64
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 32
    ffn: int = 160
    layers: int = 2
    vocab: int = 300
    tied: bool = False
    kinds: Mapping[str, str] = field(default_factory=lambda: {"": "Q4_0"})
    keys: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Array] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    seed: int = 0
    vector_kind: str = "F32"
    exact_vectors: bool = False
    #: Whether a fused architecture has q, k and v apart, as its older files.
    split: bool = False
    #: Experts in place of the FFNs.
    experts: int = 0
    #: Whether each expert has tensors of its own, as in older files.
    apart: bool = False

    def tensors(self) -> dict[str, Array]:
        """Name in the file -> f32, queries and keys already in the file's order."""
        random = np.random.default_rng(self.seed)

        def matrix(rows: int, cols: int) -> Array:
            return (random.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32)

        def vector(length: int) -> Array:
            spread = 0.1 * random.standard_normal(length)
            return (1 + (np.round(spread * 128) / 128 if self.exact_vectors else spread)).astype(np.float32)

        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found = {
            "token_embd.weight": matrix(self.vocab, self.hidden),
            "output_norm.weight": vector(self.hidden),
        }
        if not self.tied:
            found["output.weight"] = matrix(self.vocab, self.hidden)
        for layer in range(self.layers):
            part = {
                "attn_norm.weight": vector(self.hidden),
                "ffn_norm.weight": vector(self.hidden),
                "attn_q.weight": matrix(queries, self.hidden),
                "attn_k.weight": matrix(keys, self.hidden),
                "attn_v.weight": matrix(keys, self.hidden),
                "attn_output.weight": matrix(self.hidden, queries),
                "ffn_gate.weight": matrix(self.ffn, self.hidden),
                "ffn_up.weight": matrix(self.ffn, self.hidden),
                "ffn_down.weight": matrix(self.hidden, self.ffn),
            }
            if self.architecture == "qwen2":
                sizes = {"attn_q": queries, "attn_k": keys, "attn_v": keys}
                part |= {f"{name}.bias": vector(size) for name, size in sizes.items()}
            if self.architecture in ("qwen3", "qwen3moe", "gemma3"):
                part |= {f"{name}.weight": vector(self.head_dim) for name in ("attn_q_norm", "attn_k_norm")}
            if self.architecture == "olmo2":
                part |= {"attn_q_norm.weight": vector(queries), "attn_k_norm.weight": vector(keys)}
                del part["attn_norm.weight"], part["ffn_norm.weight"]
            if self.architecture in ("gemma2", "gemma3", "olmo2"):
                part |= {f"post_{name}_norm.weight": vector(self.hidden) for name in ("attention", "ffw")}
            if self.architecture == "phi3":
                if not self.split:
                    part["attn_qkv.weight"] = np.vstack([part.pop(f"attn_{name}.weight") for name in "qkv"])
                part["ffn_up.weight"] = np.vstack([part.pop("ffn_gate.weight"), part["ffn_up.weight"]])
            if self.experts:
                for name in ("ffn_gate", "ffn_up", "ffn_down"):
                    each = [matrix(*part[f"{name}.weight"].shape) for _ in range(self.experts)]
                    del part[f"{name}.weight"]
                    if self.apart:
                        part |= {f"{name}.{number}.weight": one for number, one in enumerate(each)}
                    else:
                        part[f"{name}_exps.weight"] = np.stack(each)
                part["ffn_gate_inp.weight"] = matrix(self.experts, self.hidden)
            if self.architecture == "gpt-oss":
                part["post_attention_norm.weight"] = part.pop("ffn_norm.weight")
                part["attn_sinks.weight"] = vector(self.heads)
                part |= {f"attn_{name}.bias": vector(keys) for name in "kv"}
                part |= {"attn_q.bias": vector(queries), "attn_output.bias": vector(self.hidden)}
                part["ffn_gate_inp.bias"] = vector(self.experts)
                for name, size in (("gate", self.ffn), ("up", self.ffn), ("down", self.hidden)):
                    part[f"ffn_{name}_exps.bias"] = np.stack([vector(size) for _ in range(self.experts)])
            found |= {f"blk.{layer}.{name}": value for name, value in part.items()}
        found |= self.extra
        return {name: value for name, value in found.items() if name not in self.without}

    def metadata(self) -> dict[str, Any]:
        """Key -> value."""
        name = self.architecture
        return {
            f"{name}.block_count": self.layers,
            f"{name}.context_length": 128,
            f"{name}.embedding_length": self.hidden,
            f"{name}.feed_forward_length": self.ffn,
            f"{name}.attention.head_count": self.heads,
            f"{name}.attention.head_count_kv": self.kv_heads,
            f"{name}.attention.key_length": self.head_dim,
            f"{name}.attention.value_length": self.head_dim,
            f"{name}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{name}.rope.dimension_count": self.head_dim,
            f"{name}.rope.freq_base": 10000.0,
            f"{name}.vocab_size": self.vocab,
        } | dict(self.keys)

    def write(self, path: Path, tensors_per_part: int = 0) -> Path:
        """Writes one file, or parts `STEM-00001-of-0000N.gguf`. Returns the file's path, or the first part's."""
        keys, tensors = self.metadata(), self.tensors()
        return write_gguf(path, self.architecture, keys, tensors, self._kind, tensors_per_part)

    def _kind(self, name: str, values: Array) -> str:
        if values.ndim == 1 or name.endswith(".bias"):
            return "F32" if name.startswith("rope_") else self.vector_kind
        matching = [part for part in self.kinds if name.startswith(part) or f".{part}" in name]
        return self.kinds[max(matching, key=len)]


def write_gguf(
    path: Path,
    architecture: str,
    keys: Mapping[str, Any],
    tensors: Mapping[str, Array],
    kind_of: Callable[[str, Array], str],
    tensors_per_part: int = 0,
) -> Path:
    """Writes a file with the keys and the tensors, given in f32 and written in the types of `kind_of`. With
    `tensors_per_part` it writes several files and returns the first."""
    writer = GGUFWriter(path, architecture, split_max_tensors=tensors_per_part)
    for key, value in keys.items():
        _add(writer, key, value)
    for name, values in tensors.items():
        kind = kind_of(name, values)
        if kind in ("F32", "F16"):
            writer.add_tensor(name, values.astype(np.float32 if kind == "F32" else np.float16))
        else:
            try:
                raw = gguf.quants.quantize(values, GGMLQuantizationType[kind])
            except NotImplementedError:  # the package writes few types
                rows = math.prod(values.shape[:-1])
                raw = some_blocks(kind, rows, values.shape[-1], name).reshape(*values.shape[:-1], -1)
            writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def some_blocks(kind: str, rows: int, cols: int, seed: str = "") -> Array:
    """Returns blocks of any codes and scales, uint8 [rows, bytes], the same with every version of numpy."""
    per_block, nbytes = BLOCKS[kind]
    count = rows * cols // per_block
    data = hashlib.shake_256(f"{kind} {seed}".encode()).digest(count * nbytes)
    blocks = np.frombuffer(data, np.uint8).reshape(count, nbytes).copy()
    if kind == "MXFP4":
        blocks[:, 0] = 120 + blocks[:, 0] % 4
        return blocks.reshape(rows, -1)
    halves = {"Q6_K": [208], "Q2_K": [80, 82]}.get(kind, [0, 2] if kind[-1] in "1K" else [0])
    for at in halves:  # f16 of about 2**-7, of either sign
        blocks[:, at + 1] = blocks[:, at + 1] & 0x83 | 0x20
    return blocks.reshape(rows, -1)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def dequantised(path: Path) -> dict[str, Array]:
    """Name -> f32, as the `gguf` package reads the file."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(
            [int(size) for size in reversed(tensor.shape)]
        )
        for tensor in GGUFReader(path).tensors
    }


def interleaved(rows: Array, head_dim: int) -> Array:
    """Rows as checkpoints order them (the halves of a head) in the order of the files (pairs)."""
    heads = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return heads.swapaxes(1, 2).reshape(rows.shape)


def paired_back(rows: Array, head_dim: int) -> Array:
    heads = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    return heads.swapaxes(1, 2).reshape(rows.shape)
