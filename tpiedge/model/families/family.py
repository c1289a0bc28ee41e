"""Declares what a model family's config.json means: the defaults of transformers 5, and what no key says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta

from tpiedge.model.blocks import MAX_EXPERTS, MAX_FFN, Experts, Layer, Norms
from tpiedge.model.folder import ConfigFields
from tpiedge.model.rope import MAX_POSITIONS, RopeConfig
from tpiedge.sanitise import quote
from tpiedge.units import counted

#: The same key of transformers 5 and 4, which take either.
EXPERT_COUNTS: Final = ("num_local_experts", "num_experts")
#: Keys of GGUF files with experts.
EXPERT_KEYS: Final[Mapping[str, str]] = {
    "expert_count": EXPERT_COUNTS[0],
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
FULL: Final = ("full_attention", "attention")
SLIDING: Final = "sliding_attention"
_MAX_FACTOR: Final = 1e6
#: Names in GGUF files of the norms of models with norms around their blocks.
NORMS_AROUND: Final[Mapping[str, str]] = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_Factor = Annotated[float, Meta(ge=1e-6, le=_MAX_FACTOR)]
_Cap = Annotated[float, Meta(ge=0, le=_MAX_FACTOR)]

Windows: TypeAlias = tuple[int | None, ...]
Ropes: TypeAlias = tuple[RopeConfig | None, ...]
Layers: TypeAlias = tuple[Layer, ...]


@dataclass(frozen=True)
class Factors:
    """Numbers by which a model multiplies: the rows of its embedding, the results of its blocks, and scores of
    attention (None: 1 / sqrt(width)). Logits are divided by `logit_divisor`. A soft cap c makes c * tanh(x / c) of x;
    0 means none."""

    embedding: _Factor = 1.0
    block: _Factor = 1.0
    scores: _Factor | None = None
    score_cap: _Cap = 0.0
    #: Scores at position p are multiplied by 1 + score_growth * ln(1 + floor(p / the rotation's original context)).
    score_growth: Annotated[float, Meta(ge=0, le=100)] = 0.0
    logit_divisor: _Factor = 1.0
    logit_cap: _Cap = 0.0


def no_windows(_config: ConfigFields, layers: int) -> Windows:
    return (None,) * layers


def one_rope(config: ConfigFields, positions: int, windows: Windows) -> Ropes:
    return (RopeConfig.from_huggingface(config, positions),) * len(windows)


def plain(_config: ConfigFields) -> Factors:
    return Factors()


def alike(_config: ConfigFields, layers: Layers) -> Layers:
    return layers


def by_expert(place: str, *names: str) -> tuple[str, ...]:
    """Returns `Family.experts` of checkpoints in which each expert has tensors of its own: gate, up and down."""
    return f"{place}.gate.weight", *(f"{place}.experts.{{}}.{name}.weight" for name in names)


def with_experts(
    count: int, columns_key: str, normalised: Callable[[ConfigFields], bool]
) -> Callable[[ConfigFields, Layers], Layers]:
    """Returns a rule: all layers have experts in place of an FFN, by default `count`. `columns_key`: the columns of an
    expert."""

    def layers(config: ConfigFields, alike: Layers) -> Layers:
        given = [config.integer(key, 1, MAX_EXPERTS) for key in EXPERT_COUNTS if config.raw(key) is not None]
        if len(set(given)) > 1:
            config.refuse(EXPERT_COUNTS[0], f"is {given[0]}, but {EXPERT_COUNTS[1]} is {given[1]}")
        experts = Experts(
            (*given, count)[0],
            config.integer("num_experts_per_tok", 1, MAX_EXPERTS),
            config.integer(columns_key, 1, MAX_FFN),
            next(one.ffn.activation for one in alike if one.ffn),
            normalised(config),
        )
        return tuple(replace(one, ffn=None, experts=experts) for one in alike)

    return layers


@dataclass(frozen=True)
class Gguf:
    """Tensors and keys that GGUF files of an architecture have beside those of Llama."""

    architecture: str
    #: Whether the files rotate neighbouring columns of queries and keys, not the halves of a head.
    paired: bool = False
    #: The checkpoint's name of a part of a layer, or of a tensor, without ".weight" -> the file's.
    tensors: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    #: Tensors without which a file is damaged, beside those of the config's layers.
    needs: frozenset[str] = frozenset()
    #: A flag of config.json -> parts of a layer. It is set if a layer has the first one and lacks the second.
    lacking: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    #: The file's key of a number or a list, without the architecture -> config.json's. The number 0 counts as missing.
    keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    #: Returns the fields of config.json that follow from the others, whose numbers are not checked yet.
    more: Callable[[Mapping[str, Any]], Mapping[str, object]] = lambda _config: {}


@dataclass(frozen=True)
class Family:
    """`name`: the beginning of the names of its classes. `defaults`: what a missing key (not null) means; others
    are needed. For a bias, None means that config.json decides, by `attention_bias` and `mlp_bias`."""

    model_type: str
    name: str
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    attention_bias: bool | None = None  # on q, k, v and o
    qkv_bias: bool = False  # on q, k and v, whatever the config says
    mlp_bias: bool | None = False
    head_norms: bool = False
    row_norms: bool = False
    norms: Norms = "before"
    #: Is added to the weights of norms when they are read.
    norm_offset: float = 0.0
    activation_key: str = "hidden_act"
    windows: Callable[[ConfigFields, int], Windows] = no_windows
    ropes: Callable[[ConfigFields, int, Windows], Ropes] = one_rope
    factors: Callable[[ConfigFields], Factors] = plain
    #: Makes the layers of ones that differ by windows and rotations only. Reads `per_layer_config`.
    layers: Callable[[ConfigFields, Layers], Layers] = alike
    #: The tensors of a layer's router, and of an expert's gate, up and down. "{}" stands for the expert's number, and
    #: "NAME[{}]" for the expert's matrix of a tensor that has those of all (see `Columns` if it has a row per input).
    #: Gate and up may be one matrix, gate above up. Empty without experts.
    experts: tuple[str, ...] = ()
    #: Whether the checkpoint has q, k and v in one tensor, and gate and up in another.
    fused: bool = False
    #: Shapes of known models: name -> config.json as published, without default values, with the older keys
    #: `rope_theta` and `rope_scaling`.
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    #: Names of a model with more than text, whose `text_config` is of this family.
    wrappers: tuple[str, ...] = ()
    #: Keys of the `text_config` that transformers ignores there.
    ignored_in_wrappers: frozenset[str] = frozenset()
    #: None: GGUF files of this family cannot be read.
    gguf: Gguf | None = None


def window_size(config: ConfigFields, default: int | None = None) -> int | None:
    """Reads `sliding_window`. `default` holds if the key is missing; null means that there is no window."""
    default = None if "sliding_window" in config.values else default
    return config.optional_integer("sliding_window", 1, MAX_POSITIONS) or default


def one_window(config: ConfigFields, layers: int) -> Windows:
    return (window_size(config),) * layers


def listed_windows(config: ConfigFields, layers: int) -> Windows:
    """Reads `layer_types`. Without them, all layers have windows."""
    window = window_size(config, 4096)
    return (window,) * layers if config.raw("layer_types") is None else typed_windows(config, layers, window)


def typed_windows(config: ConfigFields, layers: int, window: int | None) -> Windows:
    """Reads `layer_types`, one for each layer."""
    types = config.sequence("layer_types", layers)
    if len(types) != layers:
        config.refuse(
            "layer_types", f"has {counted(len(types), 'entry', 'entries')} for {counted(layers, 'layer')}"
        )
    for name in types:
        if name not in (*FULL, SLIDING):
            config.refuse("layer_types", f"holds {quote(name)}; supported: full_attention, sliding_attention")
        if name == SLIDING and window is None:
            config.refuse(
                "layer_types", "holds sliding_attention, but use_sliding_window or its size is not set"
            )
    return tuple(window if name == SLIDING else None for name in types)


def periodic_windows(every: int, default: int | None) -> Callable[[ConfigFields, int], Windows]:
    """Returns a rule: `layer_types`, else all layers have windows but those whose number from 1 is a multiple of
    `sliding_window_pattern` (by default `every`)."""

    def windows(config: ConfigFields, layers: int) -> Windows:
        window = window_size(config, default)
        if config.raw("layer_types") is not None:
            return typed_windows(config, layers, window)
        period = config.integer("sliding_window_pattern", 1, 1 << 16, every)
        return tuple(window if (layer + 1) % period else None for layer in range(layers))

    return windows


def ropes_by_type(
    full_theta: float, local_theta: float, local_key: str = ""
) -> Callable[[ConfigFields, int, Windows], Ropes]:
    """Returns a rule: layers with and without a window have parameters of their own. Without them, `rope_scaling` and
    `rope_theta` are of layers without a window, and `local_key` names the theta of the others."""

    def ropes(config: ConfigFields, positions: int, windows: Windows) -> Ropes:
        by_type = config.fields("rope_parameters")
        is_new = any(key in by_type.values for key in (FULL[0], SLIDING))
        if by_type.values and not is_new:  # transformers ignores it
            config.refuse("rope_parameters", "does not say what full_attention and sliding_attention have")
        full = by_type.fields(FULL[0]) if is_new else config.fields("rope_scaling")
        local = by_type.fields(SLIDING)
        for one in (full, local):  # transformers ignores both
            if one.raw("type") is not None and one.raw("rope_type") is None:
                one.refuse("type", "is not rope_type")
            if not one.flag("truncate", True):
                one.refuse("truncate", "is not supported")
        theta = config.number("rope_theta", 1.0001, 1e12, full_theta)
        of_window = config.number(local_key, 1.0001, 1e12, local_theta) if local_key else local_theta
        found = RopeConfig.of(full, positions, theta), RopeConfig.of(local, positions, of_window)
        return tuple(found[window is not None] for window in windows)

    return ropes


def chosen_windows(config: ConfigFields, layers: int) -> Windows:
    """Returns windows only with `use_sliding_window`: as `layer_types` says, or from `max_window_layers` on."""
    window = window_size(config, 4096) if config.flag("use_sliding_window", False) else None
    if config.raw("layer_types") is not None:
        return typed_windows(config, layers, window)
    first = config.integer("max_window_layers", 0, MAX_POSITIONS, 28)
    return tuple(window if layer >= first else None for layer in range(layers))


def cap(config: ConfigFields, key: str) -> float:
    return config.optional_number(key, 1e-3, _MAX_FACTOR) or 0.0


def refuse_bidirectional(config: ConfigFields, *harmless: str) -> None:
    if config.raw("use_bidirectional_attention") not in (None, False, *harmless):
        config.refuse("use_bidirectional_attention", "is set: only text generation is supported")


def query_scalar(config: Mapping[str, Any], wide: int) -> int:
    """Returns what GGUF files of Gemma lack. `wide`: layers of the model that has hidden size / heads."""
    columns: int = config["hidden_size"] // config["num_attention_heads"]
    return columns if config["num_hidden_layers"] == wide else config["head_dim"]


def factor(config: ConfigFields, key: str) -> float:
    return config.number(key, 1e-6, _MAX_FACTOR, 1.0)


_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "max_position_embeddings"),
)


def common(
    architecture: str, eps: float, theta: float, tied: bool = False, **facts: object
) -> dict[str, object]:
    """Returns what a family's presets have in common."""
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": architecture.lower(),
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "rms_norm_eps": eps,
        "rope_theta": theta,
        "tie_word_embeddings": tied,
        **facts,
    }


def shape(family: Mapping[str, object], *sizes: int, **facts: object) -> dict[str, object]:
    """Returns a preset. `sizes`: as many of _SIZES as differ in the family."""
    return {**family, **dict(zip(_SIZES, sizes, strict=False)), **facts}
