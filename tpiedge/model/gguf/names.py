"""Where a GGUF file has each tensor of a checkpoint."""

from collections.abc import Iterator
from types import MappingProxyType

from tpiedge.errors import UserError
from tpiedge.model.config import ModelConfig
from tpiedge.model.gguf.file import GgufHeader
from tpiedge.model.spec import model_spec
from tpiedge.pack.sources.ggml_tensor import BlockTensor

_OUTER = MappingProxyType(
    {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
)
_INNER = MappingProxyType(
    {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
)
# What the config was made from (model/gguf/config.py), or refused.
_OF_CONFIG = frozenset({"rope_freqs.weight"})
# Files of this architecture are made for a rotation of neighbouring numbers, checkpoints for one of halves.
_PAIRED_ARCHITECTURE = "llama"
_PAIRED = ("self_attn.q_proj", "self_attn.k_proj")


def gguf_name(source: str) -> str:
    """'model.layers.3.mlp.up_proj.weight' -> 'blk.3.ffn_up.weight'. Raises KeyError for a name of nothing."""
    if source in _OUTER:
        return _OUTER[source]
    layer, inner, kind = _parts(source)
    return f"blk.{layer}.{_INNER[inner]}.{kind}"


def gguf_tensors(header: GgufHeader, config: ModelConfig) -> dict[str, BlockTensor]:
    """Checkpoint's name -> tensor, of everything that `config` asks for.

    Raises UserError for what is missing, of another shape, or left over.
    """
    spec = model_spec(config)
    found: dict[str, BlockTensor] = {}
    for blob in (spec.embedding, *spec.layers, spec.head):
        for matrix in blob.matrices:
            found[matrix.source] = _tensor(header, config, matrix.source, matrix.source_shape)
        for vector in blob.vectors:
            found[vector.source] = _tensor(header, config, vector.source, (vector.length,))
    for name in _unknown(header, {gguf_name(source) for source in found}):
        raise UserError(
            f"{header.path}: the tensor {name} has no place in a model of {config.model_type}: without "
            "it this would be another model; get one that is supported, or the original checkpoint"
        )
    return found


def _tensor(header: GgufHeader, config: ModelConfig, source: str, shape: tuple[int, ...]) -> BlockTensor:
    name = gguf_name(source)
    info = header.tensors.get(name)
    if info is None:
        raise UserError(f"{header.path}: the tensor {name} is missing; download the file again")
    if info.shape != shape:
        raise UserError(
            f"{header.path}: the tensor {name} has the shape {info.shape}, the keys ask for {shape}"
        )
    paired = (
        config.model_type == _PAIRED_ARCHITECTURE and source not in _OUTER and _parts(source)[1] in _PAIRED
    )
    return BlockTensor(shape, header.path, info.kind, info.offset, config.head_dim if paired else 0)


def _unknown(header: GgufHeader, known: set[str]) -> Iterator[str]:
    """Weights that nothing asks for: leaving them out would be another model."""
    return (name for name in header.tensors if name not in known | _OF_CONFIG)


def _parts(source: str) -> tuple[str, str, str]:
    """(layer, name within it, "weight" or "bias")."""
    layer, _, inner = source.removeprefix("model.layers.").partition(".")
    name, _, kind = inner.rpartition(".")
    return layer, name, kind
