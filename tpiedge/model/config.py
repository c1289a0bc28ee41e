"""Reads a model's numbers and pooling from a Hugging Face folder or a pack's manifest.

The files are untrusted. An error names the file and the field in one line.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from tpiedge.errors import UserError
from tpiedge.model.folder import ConfigFields, has_file, parse_json, read_bytes, read_json
from tpiedge.model.quantisation import Quantisation
from tpiedge.model.rope import MAX_POSITIONS, Positions, RopeConfig
from tpiedge.sanitise import quote, sanitised_line
from tpiedge.units import counted

MAX_CONFIG_BYTES = 4 << 20

_MAX_WIDTH = 1 << 17
_MAX_FFN = 1 << 20
_MAX_LAYERS = 1024
_MAX_HEADS = 4096
MAX_HEAD_DIM = 1024
_MAX_VOCAB = 1 << 22
_MAX_EOS_IDS = 64
_MIN_EPS, _MAX_EPS = 1e-12, 0.1
_DEFAULT_WINDOW = 4096

_DTYPES = ("float32", "float16", "bfloat16")
_HEADLESS = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True)
class _FamilyTraits:
    """Defaults of a `model_type` in transformers 5. For a bias, None means that config.json decides."""

    kv_heads: int | None  # default; None: as many as query heads
    head_dim: int | None  # default; None: hidden_size / num_attention_heads
    bos_id: int | None
    eos_id: int | None
    attention_bias: bool | None  # on q, k, v and o
    qkv_bias: bool  # on q, k, v only, whatever the config says
    mlp_bias: bool | None
    qk_norm: bool
    windows: str  # "none", "all" (sliding_window for every layer) or "layers" (from max_window_layers on)


_FAMILIES: Mapping[str, _FamilyTraits] = {
    "llama": _FamilyTraits(None, None, 1, 2, None, False, None, False, "none"),
    "mistral": _FamilyTraits(8, None, 1, 2, False, False, False, False, "all"),
    "qwen2": _FamilyTraits(32, None, None, None, False, True, False, False, "layers"),
    "qwen3": _FamilyTraits(32, 128, None, None, None, False, False, True, "layers"),
}


@dataclass(frozen=True)
class ModelConfig:
    """A model's numbers. In layer i, position p attends to q with p - windows[i] < q <= p (None: to all q <= p)."""

    model_type: str
    hidden_size: Annotated[int, Meta(ge=1, le=_MAX_WIDTH)]
    intermediate_size: Annotated[int, Meta(ge=1, le=_MAX_FFN)]
    num_layers: Annotated[int, Meta(ge=1, le=_MAX_LAYERS)]
    num_heads: Annotated[int, Meta(ge=1, le=_MAX_HEADS)]
    num_kv_heads: Annotated[int, Meta(ge=1, le=_MAX_HEADS)]
    head_dim: Annotated[int, Meta(ge=2, le=MAX_HEAD_DIM)]
    vocab_size: Annotated[int, Meta(ge=1, le=_MAX_VOCAB)]
    rms_norm_eps: Annotated[float, Meta(ge=_MIN_EPS, le=_MAX_EPS)]
    rope: RopeConfig
    max_position_embeddings: Positions
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[Positions | None, ...]
    bos_id: Annotated[int, Meta(ge=0)] | None
    eos_ids: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=_MAX_EOS_IDS)]
    dtype: str
    hidden_act: str

    @property
    def context_tokens(self) -> int:
        """The number of usable positions. RoPE scaling extends it."""
        rope, limit = self.rope, self.max_position_embeddings
        match rope.kind:
            case "linear":
                return int(limit * rope.factor)
            case "yarn":
                return max(limit, int(rope.original_positions * rope.factor))
        return limit

    @property
    def group_size(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def ffn_part(self) -> float:
        """The FFN's fraction of all weights in a layer's matrices."""
        attention = 2 * self.head_dim * (self.num_heads + self.num_kv_heads)
        return 3 * self.intermediate_size / (3 * self.intermediate_size + attention)

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
        family = _FAMILIES[config.choice("model_type", _FAMILIES)]
        _refuse_unsupported(config)
        heads, kv_heads, head_dim = _heads(config, family)
        layers = config.integer("num_hidden_layers", 1, _MAX_LAYERS)
        vocab = config.integer("vocab_size", 1, _MAX_VOCAB)
        positions = config.integer("max_position_embeddings", 1, MAX_POSITIONS)

        def bias(key: str, fixed: bool | None) -> bool:
            return config.flag(key, False) if fixed is None else fixed

        attention_bias = bias("attention_bias", family.attention_bias)
        usual = {"bos_token_id": family.bos_id, "eos_token_id": family.eos_id}
        known = {key: token for key, token in usual.items() if token is not None and token < vocab}
        ids = ConfigFields(where, {**known, **values})
        return _checked(
            config,
            ModelConfig(
                model_type=config.text("model_type"),
                hidden_size=config.integer("hidden_size", 1, _MAX_WIDTH),
                intermediate_size=config.integer("intermediate_size", 1, _MAX_FFN),
                num_layers=layers,
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=head_dim,
                vocab_size=vocab,
                rms_norm_eps=config.number("rms_norm_eps", _MIN_EPS, _MAX_EPS, 1e-6),
                rope=RopeConfig.from_huggingface(config, positions),
                max_position_embeddings=positions,
                tie_word_embeddings=config.flag("tie_word_embeddings", False),
                qkv_bias=family.qkv_bias or attention_bias,
                o_bias=attention_bias,
                mlp_bias=bias("mlp_bias", family.mlp_bias),
                qk_norm=family.qk_norm,
                windows=_windows(config, family, layers),
                bos_id=ids.optional_integer("bos_token_id", 0, vocab - 1),
                eos_ids=_eos_ids(ids, vocab) or (),
                dtype=_dtype(config),
                hidden_act=config.text("hidden_act", "silu"),
            ),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"windows": list(self.windows), "eos_ids": list(self.eos_ids)}

    @staticmethod
    def from_json(values: Mapping[str, object]) -> "ModelConfig":
        config = ConfigFields("the pack's model config", values)
        try:
            found = msgspec.convert(values, ModelConfig)
        # UnicodeEncodeError: a key is half a surrogate pair
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise UserError(f"{config.where}: {sanitised_line(error, 120)}") from None
        found.rope.check(ConfigFields(f"{config.where}, rope", {}))
        config.choice("model_type", _FAMILIES)
        if any(token >= found.vocab_size for token in (*found.eos_ids, found.bos_id or 0)):
            config.refuse("eos_ids", "or bos_id are outside the vocabulary")
        return _checked(config, replace(found, dtype=_dtype(config)))


def _refuse_unsupported(config: ConfigFields) -> None:
    Quantisation.of(config)
    for key in _EXPERT_KEYS:
        if config.raw(key) is not None:
            config.refuse(key, "is set: mixture-of-experts models are not supported, only dense ones")
    if config.raw("per_layer_config") is not None:
        config.refuse("per_layer_config", "is set: layers of differing shapes are not supported")
    names = config.raw("architectures")
    # Embedding models are saved without their LM head.
    given = [str(name) for name in names] if isinstance(names, list) else []
    if given and not any(name.endswith("ForCausalLM") or name in _HEADLESS for name in given):
        config.refuse(
            "architectures", f"is {quote(names)}: only text generation (...ForCausalLM) is supported"
        )


def _heads(config: ConfigFields, family: _FamilyTraits) -> tuple[int, int, int]:
    heads = config.integer("num_attention_heads", 1, _MAX_HEADS)
    kv_default = heads if "num_key_value_heads" in config.values else family.kv_heads or heads
    kv_heads = config.integer("num_key_value_heads", 1, _MAX_HEADS, kv_default)
    if config.raw("head_dim") is not None or family.head_dim is not None:
        return heads, kv_heads, config.integer("head_dim", 2, MAX_HEAD_DIM, family.head_dim)
    hidden = config.integer("hidden_size", 1, _MAX_WIDTH)
    if hidden % heads:
        config.refuse("hidden_size", f"({hidden}) is not a multiple of num_attention_heads ({heads})")
    if not 2 <= hidden // heads <= MAX_HEAD_DIM:
        config.refuse("hidden_size", f"/ num_attention_heads is {hidden // heads}, not 2 to {MAX_HEAD_DIM}")
    return heads, kv_heads, hidden // heads


def _windows(config: ConfigFields, family: _FamilyTraits, layers: int) -> tuple[int | None, ...]:
    window = None
    if family.windows == "all" or (family.windows == "layers" and config.flag("use_sliding_window", False)):
        default = None if "sliding_window" in config.values else _DEFAULT_WINDOW
        window = config.optional_integer("sliding_window", 1, MAX_POSITIONS) or default
    if family.windows != "layers":
        return (window,) * layers
    if config.raw("layer_types") is None:
        first = config.integer("max_window_layers", 0, MAX_POSITIONS, 28)
        return tuple(window if layer >= first else None for layer in range(layers))
    types = config.sequence("layer_types", _MAX_LAYERS)
    if len(types) != layers:
        config.refuse(
            "layer_types", f"has {counted(len(types), 'entry', 'entries')} for {counted(layers, 'layer')}"
        )
    for name in types:
        if name not in ("full_attention", "attention", "sliding_attention"):
            config.refuse("layer_types", f"holds {quote(name)}; supported: full_attention, sliding_attention")
        if name == "sliding_attention" and window is None:
            config.refuse(
                "layer_types", "holds sliding_attention, but use_sliding_window and its size are not set"
            )
    return tuple(window if name == "sliding_attention" else None for name in types)


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
    if model.num_heads % model.num_kv_heads:
        multiple = f"({model.num_heads}) is not a multiple of num_key_value_heads ({model.num_kv_heads})"
        config.refuse("num_attention_heads", multiple)
    if model.head_dim % 2:
        config.refuse("head_dim", f"is {model.head_dim}; rotary positions need an even number")
    if len(model.windows) != model.num_layers:
        config.refuse("windows", f"has {len(model.windows)} entries for {model.num_layers} layers")
    if model.hidden_act != "silu":
        config.refuse("hidden_act", f"is {quote(model.hidden_act)}; supported is silu")
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
