"""Reads a model's numbers and pooling from a Hugging Face folder or a pack's manifest.

The files are untrusted. An error names the file and the field in one line.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast, get_args

import msgspec
from msgspec import Meta

from tpiedge.errors import UserError
from tpiedge.model.blocks import (
    FFN,
    MAX_FFN,
    MAX_HEAD_DIM,
    MAX_HEADS,
    ActivationName,
    Attention,
    Heads,
    Layer,
    Norms,
)
from tpiedge.model.families import FAMILIES, WRAPPERS
from tpiedge.model.families.family import EXPERT_COUNTS, Factors, Family, alike
from tpiedge.model.folder import ConfigFields, has_file, parse_json, read_bytes, read_json
from tpiedge.model.quantisation import Quantisation
from tpiedge.model.rope import MAX_POSITIONS, Positions, RopeConfig
from tpiedge.sanitise import quote, sanitised_line
from tpiedge.units import counted

MAX_CONFIG_BYTES = 4 << 20

_MAX_WIDTH = 1 << 17
_MAX_LAYERS = 1024
_MAX_VOCAB = 1 << 22
_MAX_EOS_IDS = 64
_MIN_EPS, _MAX_EPS = 1e-12, 0.1

_DTYPES = ("float32", "float16", "bfloat16")
_EXPERT_KEYS = (*EXPERT_COUNTS, "n_routed_experts")
#: Flags that older packs lack. They are left out unless they are set.
_LATE_FLAGS = {"attention": {"sinks"}, "experts": {"router_bias", "router_norm", "scaled", "bias"}}

_Hidden = Annotated[int, Meta(ge=1, le=_MAX_WIDTH)]
_VocabularySize = Annotated[int, Meta(ge=1, le=_MAX_VOCAB)]
_Eps = Annotated[float, Meta(ge=_MIN_EPS, le=_MAX_EPS)]
_Token = Annotated[int, Meta(ge=0)]
_EosIds = Annotated[tuple[_Token, ...], Meta(max_length=_MAX_EOS_IDS)]


@dataclass(frozen=True)
class ModelConfig:
    """Says what a model computes. `norm_offset` is added to the weights of norms when they are read."""

    model_type: str
    hidden_size: _Hidden
    vocab_size: _VocabularySize
    layers: Annotated[tuple[Layer, ...], Meta(min_length=1, max_length=_MAX_LAYERS)]
    rms_norm_eps: _Eps
    max_position_embeddings: Positions
    tie_word_embeddings: bool
    bos_id: _Token | None
    eos_ids: _EosIds
    dtype: str
    norms: Norms = "before"
    norm_offset: Annotated[float, Meta(ge=0, le=1)] = 0.0
    factors: Factors = field(default_factory=Factors)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def first(self) -> Layer:
        """The first layer."""
        return self.layers[0]

    @cached_property
    def rotations(self) -> tuple[tuple[RopeConfig | None, int], ...]:
        """The kinds of rotation (see Attention), in the order of their first layers."""
        return tuple(dict.fromkeys(one.attention.rotation for one in self.layers))

    @property
    def rope(self) -> RopeConfig | None:
        """The rotation of a layer, if possible of one without a window."""
        found = (one.attention for one in sorted(self.layers, key=lambda one: one.attention.window or 0))
        return next((one.rope for one in found if one.rope), None)

    @property
    def context_tokens(self) -> int:
        """The number of usable positions. RoPE scaling may extend it."""
        return self.rope.context_tokens if self.rope else self.max_position_embeddings

    @property
    def short_tokens(self) -> int:
        """See RopeConfig."""
        return self.rope.short_tokens if self.rope else MAX_POSITIONS

    @property
    def num_heads(self) -> int:
        return self.first.attention.heads

    @property
    def num_kv_heads(self) -> int:
        return self.first.attention.kv_heads

    @property
    def head_dim(self) -> int:
        """Columns of the widest head."""
        return max(one.attention.width for one in self.layers)

    @property
    def intermediate_size(self) -> int:
        return self.first.used_columns

    @property
    def input_columns(self) -> int:
        """Numbers of a token's inputs in all layers."""
        return sum(one.inputs.columns for one in self.layers if one.inputs)

    def touched_columns(self, rows: float) -> float:
        """Returns how many columns of experts `rows` rows read, on average."""
        found = (layer.experts for layer in self.layers if layer.experts is not None)
        return sum(one.columns * one.touched(rows) for one in found)

    @property
    def group_size(self) -> int:
        """The most query heads in a row that share a KV head in every layer."""
        return math.gcd(*(one.attention.group_size for one in self.layers))

    @property
    def ffn_part(self) -> float:
        """The FFN's fraction of the weights of a layer's matrices that a token uses."""
        attention = 2 * self.head_dim * (self.num_heads + self.num_kv_heads)
        ffn = (len(self.first.ffn.names) if self.first.ffn else 3) * self.intermediate_size
        return ffn / (ffn + attention)

    @staticmethod
    def open(folder: Path) -> "ModelConfig":
        """Reads `config.json`. BOS and EOS in `generation_config.json` take precedence."""
        config = read_json(folder, "config.json", MAX_CONFIG_BYTES)
        parsed = ModelConfig.from_huggingface(config, str(folder / "config.json"))
        if not has_file(folder, "generation_config.json"):
            return parsed
        where = str(folder / "generation_config.json")
        generation = ConfigFields(where, read_json(folder, "generation_config.json", MAX_CONFIG_BYTES))
        bos_id = generation.optional_integer("bos_token_id", 0, parsed.vocab_size - 1)
        eos_ids = _eos_ids(generation, parsed.vocab_size)
        found: dict[str, Any] = {"bos_id": bos_id, "eos_ids": eos_ids}
        return replace(parsed, **{name: value for name, value in found.items() if value is not None})

    @staticmethod
    def from_huggingface(values: Mapping[str, object], where: str = "config.json") -> "ModelConfig":
        """Reads the object in `config.json`; `where` names the file in messages."""
        config = ConfigFields(where, values)
        name = config.choice("model_type", [*FAMILIES, *WRAPPERS])
        _refuse_unsupported(config, name)
        config = text_fields(config)
        family = FAMILIES[config.choice("model_type", FAMILIES)]
        return _checked(config, _parsed(_with_defaults(config, family), family))

    def to_json(self) -> dict[str, Any]:
        """Returns what `from_json` reads. Models of alike layers keep the form of older packs."""
        alike = _AlikeLayers.of(self)
        if alike is not None and alike.config() == self:
            found = asdict(alike) | {"rope": alike.rope.to_json()}
            return found | {"windows": list(alike.windows), "eos_ids": list(self.eos_ids)}
        layers = [asdict(one) for one in self.layers]
        for one in layers:  # as before there were any
            for part, names in _LATE_FLAGS.items():
                one[part] = one[part] and {
                    name: value for name, value in one[part].items() if value or name not in names
                }
            if one["experts"] is None:
                del one["experts"]
        return asdict(self) | {"layers": layers, "eos_ids": list(self.eos_ids)}

    @staticmethod
    def from_json(values: Mapping[str, object]) -> "ModelConfig":
        config = ConfigFields("the pack's model config", values)
        try:
            if "layers" in values:
                found = msgspec.convert(values, ModelConfig)
            else:
                found = msgspec.convert(values, _AlikeLayers).config()
        # UnicodeEncodeError: a key is half a surrogate pair
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise UserError(f"{config.where}: {sanitised_line(error, 120)}") from None
        for rope in {one.attention.rope: None for one in found.layers}:
            if rope is not None:
                rope.check(ConfigFields(f"{config.where}, rope", {}))
        config.choice("model_type", FAMILIES)
        if any(token >= found.vocab_size for token in (*found.eos_ids, found.bos_id or 0)):
            config.refuse("eos_ids", "or bos_id are outside the vocabulary")
        return _checked(config, replace(found, dtype=_dtype(config)))


@dataclass(frozen=True)
class _AlikeLayers:
    """A model whose layers differ by their windows only, as packs have it."""

    model_type: str
    hidden_size: _Hidden
    intermediate_size: Annotated[int, Meta(ge=1, le=MAX_FFN)]
    num_layers: Annotated[int, Meta(ge=1, le=_MAX_LAYERS)]
    num_heads: Heads
    num_kv_heads: Heads
    head_dim: Annotated[int, Meta(ge=2, le=MAX_HEAD_DIM)]
    vocab_size: _VocabularySize
    rms_norm_eps: _Eps
    rope: RopeConfig
    max_position_embeddings: Positions
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[Positions | None, ...]
    bos_id: _Token | None
    eos_ids: _EosIds
    dtype: str
    hidden_act: Literal["silu"]

    @staticmethod
    def of(model: ModelConfig) -> "_AlikeLayers | None":
        attention, ffn = model.first.attention, model.first.ffn
        if attention.rope is None or attention.rope.kind == "longrope":
            return None
        if ffn is None or ffn.activation != "silu":
            return None
        return _AlikeLayers(
            model.model_type,
            model.hidden_size,
            ffn.columns,
            model.num_layers,
            attention.heads,
            attention.kv_heads,
            attention.width,
            model.vocab_size,
            model.rms_norm_eps,
            attention.rope,
            model.max_position_embeddings,
            model.tie_word_embeddings,
            attention.qkv_bias,
            attention.o_bias,
            ffn.bias,
            attention.head_norms,
            tuple(one.attention.window for one in model.layers),
            model.bos_id,
            model.eos_ids,
            model.dtype,
            "silu",
        )

    def config(self) -> ModelConfig:
        """Raises UserError unless there are as many windows as layers."""
        if len(self.windows) != self.num_layers:
            raise UserError(
                f"the pack's model config: windows has {len(self.windows)} entries for {self.num_layers} layers"
            )
        heads = self.num_heads, self.num_kv_heads, self.head_dim, self.rope
        biases = self.qkv_bias, self.o_bias, self.qk_norm
        ffn = FFN(self.intermediate_size, self.mlp_bias)
        return ModelConfig(
            self.model_type,
            self.hidden_size,
            self.vocab_size,
            tuple(Layer(Attention(*heads, window, *biases), ffn) for window in self.windows),
            self.rms_norm_eps,
            self.max_position_embeddings,
            self.tie_word_embeddings,
            self.bos_id,
            self.eos_ids,
            self.dtype,
        )


def text_fields(config: ConfigFields) -> ConfigFields:
    """Returns the config of a model with more than text as one of its text alone. Others stay as they are."""
    name = WRAPPERS.get(str(config.raw("model_type")))
    if name is None:
        return config
    inner = config.fields("text_config")
    name = inner.choice("model_type", FAMILIES, name)
    ignored = FAMILIES[name].ignored_in_wrappers
    text = {key: value for key, value in inner.values.items() if key not in ignored}
    keys = ("tie_word_embeddings", "dtype", "torch_dtype", "bos_token_id", "eos_token_id")
    outer = {key: config.values[key] for key in keys if config.raw(key) is not None}
    names = {"model_type": name, "architectures": [f"{FAMILIES[name].name}ForCausalLM"]}
    return ConfigFields(inner.where, {**text, **names, "tie_word_embeddings": True, **outer})


def _with_defaults(config: ConfigFields, family: Family) -> ConfigFields:
    vocab = config.raw("vocab_size")
    tokens = ("bos_token_id", "eos_token_id")
    beyond = {key for key in tokens if isinstance(vocab, int) and family.defaults.get(key, 0) >= vocab}
    usual = {key: value for key, value in family.defaults.items() if key not in beyond}
    return ConfigFields(config.where, {**usual, **config.values})


def _parsed(config: ConfigFields, family: Family) -> ModelConfig:
    layers = config.integer("num_hidden_layers", 1, _MAX_LAYERS)
    vocab = config.integer("vocab_size", 1, _MAX_VOCAB)
    positions = config.integer("max_position_embeddings", 1, MAX_POSITIONS)
    heads, kv_heads, head_dim = _heads(config, family)
    windows = family.windows(config, layers)

    def bias(key: str, fixed: bool | None) -> bool:
        return config.flag(key, False) if fixed is None else fixed

    attention_bias = bias("attention_bias", family.attention_bias)
    ffn = FFN(
        config.integer("intermediate_size", 1, MAX_FFN),
        bias("mlp_bias", family.mlp_bias),
        _activation(config, family),
    )

    def attention(window: int | None, rope: RopeConfig | None) -> Attention:
        return Attention(
            heads, kv_heads, head_dim, rope, window, family.qkv_bias or attention_bias, attention_bias,
            family.head_norms,
            family.row_norms,
        )  # fmt: skip

    if family.layers is alike and config.raw("per_layer_config") is not None:
        config.refuse("per_layer_config", "is set: layers of differing shapes are not supported")
    ropes = family.ropes(config, positions, windows)
    layers_alike = tuple(Layer(attention(*one), ffn) for one in zip(windows, ropes, strict=True))
    return ModelConfig(
        model_type=family.model_type,
        hidden_size=config.integer("hidden_size", 1, _MAX_WIDTH),
        vocab_size=vocab,
        layers=family.layers(config, layers_alike),
        rms_norm_eps=config.number("rms_norm_eps", _MIN_EPS, _MAX_EPS, 1e-6),
        max_position_embeddings=positions,
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        bos_id=config.optional_integer("bos_token_id", 0, vocab - 1),
        eos_ids=_eos_ids(config, vocab) or (),
        dtype=_dtype(config),
        norms=family.norms,
        norm_offset=family.norm_offset,
        factors=family.factors(config),
    )


def _activation(config: ConfigFields, family: Family) -> ActivationName:
    usual = str(family.defaults.get(family.activation_key, "silu"))
    named = [name for name in get_args(ActivationName) if name != "gpt_oss"]  # which a family has, not a key
    return cast(ActivationName, config.choice(family.activation_key, named, usual))


def _refuse_unsupported(config: ConfigFields, name: str) -> None:
    Quantisation.of(config)
    end = "ForConditionalGeneration" if name in WRAPPERS else "ForCausalLM"
    known = EXPERT_COUNTS if name in FAMILIES and FAMILIES[name].experts else ()
    for key in _EXPERT_KEYS:
        if config.raw(key) is not None and key not in known:
            config.refuse(key, f"is set: mixture-of-experts models of {quote(name)} are not supported")
    names = config.raw("architectures")
    # Embedding models are saved without their LM head.
    given = [str(name) for name in names] if isinstance(names, list) else []
    headless = {f"{family.name}Model" for family in FAMILIES.values()}
    if given and not any(name.endswith(end) or name in headless for name in given):
        config.refuse(
            "architectures", f"is {quote(names)}: only text generation (...ForCausalLM) is supported"
        )


def _heads(config: ConfigFields, family: Family) -> tuple[int, int, int]:
    heads = config.integer("num_attention_heads", 1, MAX_HEADS)
    kv_heads = config.integer("num_key_value_heads", 1, MAX_HEADS, heads)
    usual = family.defaults.get("head_dim")
    if config.raw("head_dim") is not None or usual is not None:
        return heads, kv_heads, config.integer("head_dim", 2, MAX_HEAD_DIM, usual)
    hidden = config.integer("hidden_size", 1, _MAX_WIDTH)
    if hidden % heads:
        config.refuse("hidden_size", f"({hidden}) is not a multiple of num_attention_heads ({heads})")
    if not 2 <= hidden // heads <= MAX_HEAD_DIM:
        config.refuse("hidden_size", f"/ num_attention_heads is {hidden // heads}, not 2 to {MAX_HEAD_DIM}")
    return heads, kv_heads, hidden // heads


def _eos_ids(config: ConfigFields, vocab: int) -> tuple[int, ...] | None:
    key, value = "eos_token_id", config.raw("eos_token_id")
    if value is None:
        return None
    values = config.sequence(key, _MAX_EOS_IDS) if isinstance(value, list) else [value]
    ids = [ConfigFields(config.where, {key: value}).integer(key, 0, vocab - 1) for value in values]
    return tuple(dict.fromkeys(ids))


def _dtype(config: ConfigFields) -> str:
    value = config.text("dtype", config.text("torch_dtype", "float32"))
    name = value.removeprefix("torch.")
    if name not in _DTYPES:
        config.refuse("dtype", f"is {quote(value)}; supported are {', '.join(_DTYPES)}")
    return name


def _checked(config: ConfigFields, model: ModelConfig) -> ModelConfig:
    if any(one.inputs != model.first.inputs for one in model.layers):
        config.refuse("inputs", "differ from layer to layer")
    for number, layer in enumerate(model.layers):
        if layer.ffn is None and layer.experts is None:
            config.refuse("layers", f"has neither an FFN nor experts in layer {number}")
        if layer.ffn and layer.experts and model.norms != "around":
            config.refuse(
                "layers", f"has both experts and an FFN in layer {number}, without norms of their results"
            )
        if layer.experts and not FAMILIES[model.model_type].experts:
            config.refuse("layers", f"has experts, which {model.model_type} has not")
        if layer.experts and layer.experts.chosen > layer.experts.count:
            chosen, count = layer.experts.chosen, layer.experts.count
            config.refuse("num_experts_per_tok", f"is {chosen}, but there are {counted(count, 'expert')}")
        if layer.ffn and layer.ffn.bias and layer.experts:
            config.refuse("mlp_bias", f"is set, but layer {number} has experts beside its FFN")
    for number, attention in enumerate(one.attention for one in model.layers):
        if attention.heads % attention.kv_heads:
            multiple = f"({attention.heads}) is not a multiple of num_key_value_heads ({attention.kv_heads})"
            config.refuse("num_attention_heads", multiple)
        if attention.width % 2:
            config.refuse("head_dim", f"is {attention.width}; rotary positions need an even number")
        if attention.heads != model.num_heads:
            config.refuse(
                "num_attention_heads", f"is {model.num_heads} in layer 0, {attention.heads} in {number}"
            )
        used = attention.keys_of
        if used is not None:
            earlier = model.layers[used].attention if used < number else attention
            own, theirs = ((one.kv_heads, one.width) for one in (attention, earlier))
            if earlier.keys_of is not None or own != theirs:
                needed = f"an earlier layer with its own keys, of {own[0]} KV heads {own[1]} wide"
                config.refuse("keys_of", f"of layer {number} is {used}, not {needed}")
        rope, width = attention.rope, attention.width
        if rope and rope.kind == "longrope":
            for name in ("short_factor", "long_factor"):
                if 2 * (count := len(getattr(rope, name))) != rope.rotated(width):
                    config.refuse(name, f"has {count} numbers for heads of {width} columns")
    return model


POOLING_FOLDER: Final = "1_Pooling"
POOLING_FILE: Final = "config.json"

_USUAL: Final = "mean"
_PREFIX: Final = "pooling_mode_"
_MODE: Final = "pooling_mode"
_MODES: Mapping[str, str] = {"mean_tokens": "mean", "mean": "mean", "lasttoken": "last", "cls_token": "cls"}
"""Name in sentence-transformers -> our name."""


def usual_pooling(folder: Path | None) -> str:
    """Returns the model's kind of pooling, by default "mean"."""
    where = f"{POOLING_FOLDER}/{POOLING_FILE}"
    if folder is None or not has_file(folder, where):
        return _USUAL
    data = read_bytes(folder, POOLING_FILE, 1_000_000, POOLING_FOLDER)
    fields = ConfigFields(str(folder / where), parse_json(data, str(folder / where)))
    names = [name for name in fields.values if name.startswith(_PREFIX)]
    modes = [name.removeprefix(_PREFIX) for name in names if fields.flag(name)]
    if not modes and fields.raw(_MODE) is not None:
        modes = [fields.text(_MODE)]
    return " and ".join(_MODES.get(mode, mode) for mode in modes) or _USUAL


def pooling_config(kind: str) -> Mapping[str, object]:
    if kind not in _MODES.values():
        return {_MODE: kind}
    return {f"{_PREFIX}{mode}": ours == kind for mode, ours in _MODES.items() if mode != ours}
