"""Describes a model's pack. The unit of q and o is a query head. The unit of k and v is a KV head. The unit of FFN
and vocabulary is a tile of 128 rows."""

from tpiedge.errors import UserError
from tpiedge.model.config import ModelConfig
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import BlobSpec, MatrixSpec, ModelSpec, VectorSpec

TILE_ROWS = 128

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"


def model_spec(config: ModelConfig) -> ModelSpec:
    vocabulary = (config.vocab_size, config.hidden_size, TILE_ROWS)
    head = () if config.tie_word_embeddings else (MatrixSpec("head", HEAD, *vocabulary),)
    return ModelSpec(
        embedding=BlobSpec(matrices=(MatrixSpec("embedding", EMBEDDING, *vocabulary),)),
        layers=tuple(_layer(config, f"model.layers.{index}") for index in range(config.num_layers)),
        head=BlobSpec(matrices=head, vectors=(VectorSpec("final_norm", FINAL_NORM, config.hidden_size),)),
        config=config.to_json(),
    )


def config_of_pack(pack: Pack) -> ModelConfig:
    """Returns the pack's config. Raises UserError unless it fits the pack's matrices."""
    config = ModelConfig.from_json(pack.config)
    if model_spec(config).blobs != pack.spec.blobs:
        raise UserError(f"the matrices of {pack.path} are not those of its model config: pack again")
    return config


def _layer(config: ModelConfig, prefix: str) -> BlobSpec:
    hidden, unit, ffn = config.hidden_size, config.head_dim, config.intermediate_size
    queries, keys = config.num_heads * unit, config.num_kv_heads * unit
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    vectors = [
        VectorSpec("attention_norm", f"{prefix}.input_layernorm.weight", hidden),
        VectorSpec("ffn_norm", f"{prefix}.post_attention_layernorm.weight", hidden),
    ]
    if config.qk_norm:
        vectors += [VectorSpec(f"{name}_norm", f"{attention}.{name}_norm.weight", unit) for name in "qk"]
    matrices = (
        MatrixSpec("q", f"{attention}.q_proj.weight", queries, hidden, unit),
        MatrixSpec("k", f"{attention}.k_proj.weight", keys, hidden, unit),
        MatrixSpec("v", f"{attention}.v_proj.weight", keys, hidden, unit),
        MatrixSpec("o", f"{attention}.o_proj.weight", queries, hidden, unit, transposed=True),
        MatrixSpec("gate", f"{mlp}.gate_proj.weight", ffn, hidden, TILE_ROWS),
        MatrixSpec("up", f"{mlp}.up_proj.weight", ffn, hidden, TILE_ROWS),
        MatrixSpec("down", f"{mlp}.down_proj.weight", ffn, hidden, TILE_ROWS, transposed=True),
    )
    has_bias = {**dict.fromkeys("qkv", config.qkv_bias), "o": config.o_bias}
    for matrix in matrices:
        if has_bias.get(matrix.name, config.mlp_bias):
            bias = f"{matrix.source.removesuffix('weight')}bias"
            vectors.append(VectorSpec(f"{matrix.name}_bias", bias, matrix.source_shape[0]))
    return BlobSpec(matrices, tuple(vectors))
