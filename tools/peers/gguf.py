"""A checkpoint of the Llama family as a GGUF file, which llama.cpp maps into memory: the same weights bit for bit.

Version 3 of the format: magic, version, number of tensors and of keys, the keys with their values, a description of
each tensor, then the tensors at multiples of 32 bytes. Matrices keep their bf16; vectors are f32, as llama.cpp
expects. There is no tokenizer in it: the benchmark feeds ids.
"""

import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import Array
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.config import ModelConfig
from tpiedge.model.families import FAMILIES
from tpiedge.model.gguf.model import gguf_name
from tpiedge.model.spec import model_spec
from tpiedge.pack.source import SourceTensor, StoredTensor, TensorSource

_MAGIC, _VERSION, _ALIGN = b"GGUF", 3, 32
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_F32_TENSOR, _BF16_TENSOR = 0, 30
_MOSTLY_BF16 = 32


GgufValue = str | int | float | Sequence[str] | Sequence[int] | Sequence[float] | Sequence[bool]
"""Of a key. Arrays of whole numbers are signed; there is at least one element."""


@dataclass(frozen=True)
class GgufTensor:
    """A tensor to write: `source` is its name in the checkpoint, `shape` row-major."""

    name: str
    source: str
    shape: tuple[int, ...]

    @property
    def is_vector(self) -> bool:
        return len(self.shape) == 1

    @property
    def is_f32(self) -> bool:
        """Whether it is a vector, a router, or the biases of experts."""
        return self.is_vector or ".ffn_gate_inp." in self.name or self.name.endswith(".bias")

    @property
    def kind(self) -> int:
        """The format's number of how it is stored."""
        return _F32_TENSOR if self.is_f32 else _BF16_TENSOR

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * (4 if self.is_f32 else 2)


def write_gguf(folder: Path, out: Path) -> None:
    """Convert the checkpoint in `folder`; `out` appears when it is complete. Raises UserError."""
    checkpoint = Checkpoint.open(folder)
    _check_plain(checkpoint.config)
    checkpoint.check(model_spec(checkpoint.config))
    stored = plain(checkpoint.tensors)
    values, tensors = metadata(checkpoint.config), describe(stored)
    partial = out.with_name(f".{out.name}.partial")
    try:
        with open(partial, "wb") as file, closing(TensorSource(stored)) as source:
            file.write(header(values, tensors))
            for tensor in tensors:
                data = _values(source, tensor, checkpoint.config).tobytes()
                file.write(data + bytes(-len(data) % _ALIGN))
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def _check_plain(config: ModelConfig) -> None:
    """Raises UserError for a model whose weights are not converted."""
    attention, ffn, rope = config.first.attention, config.first.ffn, config.rope
    biased = attention.qkv_bias or attention.o_bias or ffn is None or ffn.bias
    is_wide = config.head_dim * config.num_heads != config.hidden_size
    if config.model_type != "llama" or biased or is_wide or rope is None or rope.kind != "default":
        raise UserError(f"only plain Llama models are converted to GGUF, not this {config.model_type}")


def metadata(config: ModelConfig) -> dict[str, GgufValue]:
    """Returns what llama.cpp needs of a model of Llama, Gemma, Phi-3, or one with experts."""
    gguf, rope = FAMILIES[config.model_type].gguf, config.rope
    if gguf is None or rope is None:
        raise UserError(f"no GGUF file is written of {config.model_type}")
    windows = [layer.attention.window for layer in config.layers]
    values: dict[str, GgufValue] = {
        "block_count": config.num_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": rope.rotated(config.head_dim),
        "rope.freq_base": float(rope.theta),
        "rope.scaling.original_context_length": rope.original_positions,
        "vocab_size": config.vocab_size,
    }
    if any(windows):
        values["attention.sliding_window"] = next(filter(None, windows))
    if experts := next((layer.experts for layer in config.layers if layer.experts), None):
        values |= {
            "expert_count": experts.count,
            "expert_used_count": experts.chosen,
            "expert_feed_forward_length": experts.columns,
        }
    if gguf.architecture == "gemma4":
        values |= _of_gemma4(config)
    general: dict[str, GgufValue] = {
        "general.architecture": gguf.architecture,
        "general.file_type": _MOSTLY_BF16,
        "tokenizer.ggml.model": "none",
    }
    return general | {f"{gguf.architecture}.{key}": value for key, value in values.items()}


def _of_gemma4(config: ModelConfig) -> dict[str, GgufValue]:
    layers, inputs = config.layers, config.first.inputs
    local = next(one.attention for one in layers if one.attention.window)
    widths: dict[str, GgufValue] = dict.fromkeys(
        ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"), local.width
    )
    return widths | {
        "rope.freq_base_swa": local.rope.theta if local.rope else 0.0,
        "feed_forward_length": [one.ffn.columns if one.ffn else 0 for one in layers],
        "attention.head_count_kv": [one.attention.kv_heads for one in layers],
        "attention.shared_kv_layers": sum(one.attention.keys_of is not None for one in layers),
        "attention.sliding_window_pattern": [one.attention.window is not None for one in layers],
        "embedding_length_per_layer_input": inputs.columns if inputs else 0,
        "final_logit_softcapping": config.factors.logit_cap,
    }


def plain(tensors: Mapping[str, StoredTensor]) -> dict[str, SourceTensor]:
    """The same `tensors`. Raises UserError where one is stored otherwise than in bf16."""
    found = {}
    for name, tensor in tensors.items():
        kind = tensor.dtype if isinstance(tensor, SourceTensor) else "quantised"
        if not isinstance(tensor, SourceTensor) or kind != "BF16":
            raise UserError(f"tensor {name} is {kind}: the comparison is of bf16 weights")
        found[name] = tensor
    return found


def describe(tensors: Mapping[str, SourceTensor]) -> list[GgufTensor]:
    """Every tensor of a bf16 checkpoint. Raises UserError for unknown names."""
    try:
        return [GgufTensor(gguf_name(name), name, tensor.shape) for name, tensor in tensors.items()]
    except KeyError as error:
        raise UserError(f"a tensor ({error}) has no name in GGUF") from None


def header(values: Mapping[str, GgufValue], tensors: Sequence[GgufTensor]) -> bytes:
    """All that comes before the first tensor's bytes."""
    out = bytearray(_MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(values)))
    for key, value in values.items():
        out += _string(key) + _typed(value)
    offset = 0
    for tensor in tensors:
        sizes = tensor.shape[::-1]  # the fastest-running first
        out += _string(tensor.name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        out += struct.pack("<IQ", tensor.kind, offset)
        offset += tensor.nbytes + -tensor.nbytes % _ALIGN
    return bytes(out) + bytes(-len(out) % _ALIGN)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(value: GgufValue) -> bytes:
    match value:
        case str():
            return struct.pack("<I", _STRING) + _string(value)
        case float():
            return struct.pack("<If", _F32, value)
        case int():
            return struct.pack("<II", _U32, value)
    return struct.pack("<I", _ARRAY) + _array(value)


def _array(values: Sequence[str] | Sequence[int] | Sequence[float] | Sequence[bool]) -> bytes:
    kind = {str: _STRING, float: _F32, int: _I32, bool: _BOOL}[type(values[0])]
    start = struct.pack("<IQ", kind, len(values))
    if kind == _STRING:
        return start + b"".join(_string(str(value)) for value in values)
    return start + struct.pack(f"<{len(values)}{ {_F32: 'f', _I32: 'i', _BOOL: '?'}[kind] }", *values)


def _values(source: TensorSource, tensor: GgufTensor, config: ModelConfig) -> Array:
    if tensor.is_vector:
        bits: Array = source.read(tensor.source)[0].astype("<u4") << 16
        return bits.view("<f4")  # exact
    rows = source.read(tensor.source)
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    part = tensor.name.split(".")[-2]
    return pairs_interleaved(rows, heads[part]) if part in heads else rows


def pairs_interleaved(rows: Array, heads: int) -> Array:
    """Each head's rows in the order of llama.cpp, which rotates rows 2i and 2i + 1; checkpoints: i and i + half."""
    count, cols = rows.shape
    return rows.reshape(heads, 2, count // heads // 2, cols).swapaxes(1, 2).reshape(count, cols)
