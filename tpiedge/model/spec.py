"""Describes a model's pack. The unit of q and o is a query head. The unit of k and v is a KV head. The unit of FFN
and vocabulary is a tile of 128 rows, that of experts a tile of 64 rows of each."""

from collections.abc import Iterator, Mapping
from typing import Final

from tpiedge.errors import UserError
from tpiedge.model.blocks import Layer, Norms
from tpiedge.model.config import ModelConfig
from tpiedge.model.families import FAMILIES
from tpiedge.pack.layout import FFN_MATRICES
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import EXPERT_BIASES, ROUTER, BlobSpec, ExpertsSpec, MatrixSpec, ModelSpec, VectorSpec

TILE_ROWS = 128
EXPERT_ROWS = 64

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"
_NORMS: Final[Mapping[Norms, Mapping[str, str]]] = {
    "before": {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"},
    "around": {
        "attention_norm": "input_layernorm",
        "attention_end_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "ffn_end_norm": "post_feedforward_layernorm",
    },
    "after": {
        "attention_end_norm": "post_attention_layernorm",
        "ffn_end_norm": "post_feedforward_layernorm",
    },
}
#: Of a layer with experts beside its FFN.
_NORMS_BESIDE: Final = {
    "experts_norm": "pre_feedforward_layernorm_2",
    "ffn_part_norm": "post_feedforward_layernorm_1",
    "experts_part_norm": "post_feedforward_layernorm_2",
}


def model_spec(config: ModelConfig) -> ModelSpec:
    vocabulary = (config.vocab_size, config.hidden_size, TILE_ROWS)
    head = () if config.tie_word_embeddings else (MatrixSpec("head", HEAD, *vocabulary),)
    return ModelSpec(
        embedding=_embedding(config, MatrixSpec("embedding", EMBEDDING, *vocabulary)),
        layers=tuple(
            _layer(config, layer, f"model.layers.{index}") for index, layer in enumerate(config.layers)
        ),
        head=BlobSpec(matrices=head, vectors=(VectorSpec("final_norm", FINAL_NORM, config.hidden_size),)),
        config=config.to_json(),
    )


def _embedding(config: ModelConfig, embedding: MatrixSpec) -> BlobSpec:
    inputs = config.first.inputs
    if inputs is None:
        return BlobSpec((embedding,))
    # Of all layers, layer by layer.
    columns, hidden = config.input_columns, config.hidden_size
    matrices = (
        embedding,
        MatrixSpec(
            "inputs_embedding", "model.embed_tokens_per_layer.weight", config.vocab_size, columns, TILE_ROWS
        ),
        MatrixSpec(
            "inputs_projection", "model.per_layer_model_projection.weight", columns, hidden, TILE_ROWS
        ),
    )
    norm = VectorSpec("inputs_norm", "model.per_layer_projection_norm.weight", inputs.columns)
    return BlobSpec(matrices, (norm,))


def unused_keys(config: ModelConfig) -> Iterator[str]:
    """Yields tensors that a checkpoint may have for keys and values of layers that use those of earlier ones."""
    for number, layer in enumerate(config.layers):
        if layer.attention.keys_of is not None:
            yield from (
                f"model.layers.{number}.self_attn.{name}.weight" for name in ("k_proj", "v_proj", "k_norm")
            )


def config_of_pack(pack: Pack) -> ModelConfig:
    """Returns the pack's config. Raises UserError unless it fits the pack's matrices."""
    config = ModelConfig.from_json(pack.config)
    if model_spec(config).blobs != pack.spec.blobs:
        raise UserError(f"the matrices of {pack.path} are not those of its model config: pack again")
    return config


def _layer(config: ModelConfig, layer: Layer, prefix: str) -> BlobSpec:
    hidden, unit, ffn, family = (
        config.hidden_size,
        layer.attention.width,
        layer.ffn,
        FAMILIES[config.model_type],
    )
    queries, keys = layer.attention.heads * unit, layer.attention.kv_heads * unit
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv = {name: queries if name == "q" else keys for name in layer.attention.projections}
    inner = dict.fromkeys(ffn.names[:-1], ffn.columns) if ffn else {}
    names = {name: f"{attention}.{name}_proj.weight" for name in (*qkv, "o")}
    names |= {name: f"{mlp}.{name}_proj.weight" for name in (*inner, "down")}
    if family.fused:
        names |= dict(_rows_of(f"{attention}.qkv_proj.weight", qkv))
        names |= dict(_rows_of(f"{mlp}.gate_up_proj.weight", inner))
    vectors = [
        VectorSpec(name, f"{prefix}.{source}.weight", hidden) for name, source in _NORMS[config.norms].items()
    ]
    row_norms = layer.attention.row_norms
    if layer.attention.head_norms or row_norms:
        normed = {name: rows if row_norms else unit for name, rows in qkv.items() if name != "v"}
        vectors += [
            VectorSpec(f"{name}_norm", f"{attention}.{name}_norm.weight", length)
            for name, length in normed.items()
        ]
    stored = {name: f"{name}_whole" if row_norms and name != "v" else name for name in qkv}
    matrices = (
        *(MatrixSpec(stored[name], names[name], rows, hidden, unit) for name, rows in qkv.items()),
        MatrixSpec("o", names["o"], queries, hidden, unit, transposed=True),
        *(MatrixSpec(name, names[name], rows, hidden, TILE_ROWS) for name, rows in inner.items()),
    )
    if ffn is not None:
        matrices += (MatrixSpec("down", names["down"], ffn.columns, hidden, TILE_ROWS, transposed=True),)
    if layer.inputs is not None:
        columns = layer.inputs.columns
        gate, projection = (
            f"{prefix}.{name}.weight" for name in ("per_layer_input_gate", "per_layer_projection")
        )
        vectors.append(VectorSpec("inputs_end_norm", f"{prefix}.post_per_layer_input_norm.weight", hidden))
        matrices += (
            MatrixSpec("inputs_gate", gate, columns, hidden, TILE_ROWS),
            MatrixSpec("inputs_down", projection, columns, hidden, TILE_ROWS, transposed=True),
        )
    if layer.scaled:
        vectors.append(VectorSpec("layer_scalar", f"{prefix}.layer_scalar", 1))
    if layer.attention.sinks:
        vectors.append(VectorSpec("sinks", f"{attention}.sinks", layer.attention.heads))
    has_bias = {**dict.fromkeys("qkv", layer.attention.qkv_bias), "o": layer.attention.o_bias}
    has_bias |= dict.fromkeys(ffn.names, ffn.bias) if ffn else {}
    for matrix in matrices:
        if has_bias.get(matrix.name.removesuffix("_whole")):
            bias = f"{matrix.source.removesuffix('weight')}bias"
            name = f"{matrix.name.removesuffix('_whole')}_bias"
            vectors.append(VectorSpec(name, bias, matrix.source_shape[0]))
    if layer.experts is None:
        return BlobSpec(matrices, tuple(vectors))
    router, *of_expert = (f"{prefix}.{source}" for source in family.experts)
    count, columns = layer.experts.count, layer.experts.columns
    vectors.append(VectorSpec(ROUTER, router, count * hidden))
    place = router.removesuffix(".proj.weight")
    if layer.experts.router_bias:
        vectors.append(VectorSpec("router_bias", f"{router.removesuffix('weight')}bias", count))
    if layer.experts.router_norm:
        vectors.append(VectorSpec("router_norm", f"{place}.scale", hidden))
    if layer.experts.scaled:
        vectors.append(VectorSpec("expert_scale", f"{place}.per_expert_scale", count))
    if ffn is not None:
        vectors += [
            VectorSpec(name, f"{prefix}.{source}.weight", hidden) for name, source in _NORMS_BESIDE.items()
        ]
    if of_expert[0] == of_expert[1]:
        rows = dict.fromkeys(FFN_MATRICES[:2], columns)
        of_expert[:2] = (source for _, source in _rows_of(of_expert[0], rows))
    of_each = tuple(
        MatrixSpec(name, source, columns, hidden, EXPERT_ROWS, transposed=name == "down")
        for name, source in zip(FFN_MATRICES, of_expert, strict=True)
    )
    if layer.experts.bias:
        lengths = (columns, columns, hidden)
        for name, source, length in zip(EXPERT_BIASES, map(_bias_of, of_expert), lengths, strict=True):
            vectors.append(VectorSpec(name, source, count * length))
    return BlobSpec(matrices, tuple(vectors), ExpertsSpec(count, layer.experts.chosen, of_each))


def _bias_of(source: str) -> str:
    """Returns the source of the biases that belong to the matrices of all experts: one tensor, or columns of it."""
    name, _, columns = source.removesuffix(".T").partition("[{},")
    return f"{name}_bias" if columns.endswith("::1]") else f"{name}_bias[{columns}"


def _rows_of(tensor: str, rows: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yields each matrix and its source, for matrices of so many rows that lie in one tensor, one after the other."""
    first = 0
    for name, count in rows.items():
        yield name, f"{tensor}#{first}:{first + count}"
        first += count
