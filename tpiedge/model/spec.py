"""The neutral layout that a pack is written from: matrices, their shapes, units and sources.

Units: one query head for q and o, one KV head for k and v, tiles of 128 rows for the FFN
and for the vocabulary.
"""

from tpiedge.errors import UserError
from tpiedge.model.config import ModelConfig
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec, VectorSpec

TILE_ROWS = 128

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
_FINAL_NORM = "model.norm.weight"


def model_spec(config: ModelConfig) -> ModelSpec:
    """The layout of `config` with the tensor names of its Hugging Face checkpoint."""
    vocabulary = (config.vocab_size, config.hidden_size, TILE_ROWS)
    head = () if config.tie_word_embeddings else (MatrixSpec("head", HEAD, *vocabulary),)
    return ModelSpec(
        embedding=BlobSpec(matrices=(MatrixSpec("embedding", EMBEDDING, *vocabulary),)),
        layers=tuple(_layer(config, f"model.layers.{index}") for index in range(config.num_layers)),
        head=BlobSpec(matrices=head, vectors=(VectorSpec("final_norm", _FINAL_NORM, config.hidden_size),)),
        config=config.to_json(),
    )


def config_of_pack(pack: Pack) -> ModelConfig:
    """The model in `pack`. Raises UserError unless the pack holds exactly the matrices of its config."""
    config = ModelConfig.from_json(pack.config)
    expected, found = model_spec(config), pack.spec
    if (expected.embedding, expected.layers, expected.head) != (found.embedding, found.layers, found.head):
        raise UserError(f"the matrices of {pack.path} are not those of its model config: pack again")
    return config


def _layer(config: ModelConfig, prefix: str) -> BlobSpec:
    return BlobSpec(
        matrices=_attention_matrices(config, f"{prefix}.self_attn") + _ffn_matrices(config, f"{prefix}.mlp"),
        vectors=_norms(config, prefix) + _biases(config, prefix),
    )


def _attention_matrices(config: ModelConfig, prefix: str) -> tuple[MatrixSpec, ...]:
    hidden, unit = config.hidden_size, config.head_dim
    queries, keys = config.num_heads * unit, config.num_kv_heads * unit
    return (
        MatrixSpec("q", f"{prefix}.q_proj.weight", queries, hidden, unit),
        MatrixSpec("k", f"{prefix}.k_proj.weight", keys, hidden, unit),
        MatrixSpec("v", f"{prefix}.v_proj.weight", keys, hidden, unit),
        MatrixSpec("o", f"{prefix}.o_proj.weight", queries, hidden, unit, transposed=True),
    )


def _ffn_matrices(config: ModelConfig, prefix: str) -> tuple[MatrixSpec, ...]:
    shape = (config.intermediate_size, config.hidden_size, TILE_ROWS)
    return (
        MatrixSpec("gate", f"{prefix}.gate_proj.weight", *shape),
        MatrixSpec("up", f"{prefix}.up_proj.weight", *shape),
        MatrixSpec("down", f"{prefix}.down_proj.weight", *shape, transposed=True),
    )


def _norms(config: ModelConfig, prefix: str) -> tuple[VectorSpec, ...]:
    norms = (
        VectorSpec("attention_norm", f"{prefix}.input_layernorm.weight", config.hidden_size),
        VectorSpec("ffn_norm", f"{prefix}.post_attention_layernorm.weight", config.hidden_size),
    )
    if not config.qk_norm:
        return norms
    return (
        *norms,
        VectorSpec("q_norm", f"{prefix}.self_attn.q_norm.weight", config.head_dim),
        VectorSpec("k_norm", f"{prefix}.self_attn.k_norm.weight", config.head_dim),
    )


def _biases(config: ModelConfig, prefix: str) -> tuple[VectorSpec, ...]:
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    lengths: dict[str, int] = {}
    if config.qkv_bias:
        lengths |= {"self_attn.q": queries, "self_attn.k": keys, "self_attn.v": keys}
    if config.o_bias:
        lengths["self_attn.o"] = config.hidden_size
    if config.mlp_bias:
        ffn = config.intermediate_size
        lengths |= {"mlp.gate": ffn, "mlp.up": ffn, "mlp.down": config.hidden_size}
    return tuple(
        VectorSpec(f"{name.rpartition('.')[2]}_bias", f"{prefix}.{name}_proj.bias", length)
        for name, length in lengths.items()
    )
