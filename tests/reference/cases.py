"""The table of tiny models, each with a shape chosen to hurt.

Seeds are chosen so that the best two logits differ by more than MIN_MARGIN at every greedy step: equal tokens
then mean equal models, and not luck. `test_cases.py` holds every case to that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

MIN_MARGIN = 0.02

Config = Mapping[str, object]

_NO_ROPE_SCALING = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


@dataclass(frozen=True)
class Case:
    """One tiny model and its prompt.

    `config`: transformers' configuration, with its model_type. `dtype`: of the checkpoint, "f32", "f16" or
    "bf16". `shard_size`: of the largest file, None for a single one. `published_keys`: config.json says
    rope_theta, rope_scaling and torch_dtype, as the published models do, instead of transformers 5's
    rope_parameters and dtype. `ablation`: the configuration without the feature that the case is about, which
    must change the logits. `written`: replaces keys of config.json's text part when the model is saved; None removes.
    """

    name: str
    config: Config
    seed: int
    dtype: str = "f32"
    prompt_length: int = 21
    shard_size: str | None = None
    published_keys: bool = False
    ablation: Config = field(default_factory=dict)
    written: Config = field(default_factory=dict)


def _shape(
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    *,
    head_dim: int | None = None,
    vocab: int = 1003,
    layers: int = 3,
) -> dict[str, object]:
    shape = {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return shape | ({"head_dim": head_dim} if head_dim else {})


def _llama(shape: dict[str, object], **changes: object) -> Config:
    return {"model_type": "llama"} | shape | changes


def _rope(kind: str, theta: float = 10000.0, **parameters: float) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta} | parameters}


_LLAMA3_ROPE = _rope(
    "llama3",
    500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)

CASES: tuple[Case, ...] = (
    Case("llama2-mha", _llama(_shape(64, 4, 4, 176)), seed=3, published_keys=True),
    Case(  # 9 query heads on 3 KV heads; head_dim is not hidden / heads; last FFN tile of 44; odd vocabulary
        "llama-gqa-odd", _llama(_shape(72, 9, 3, 300, head_dim=12)), seed=0, dtype="bf16", shard_size="150KB"
    ),
    Case("llama-mqa-tied", _llama(_shape(64, 4, 1, 130), tie_word_embeddings=True), seed=0, dtype="f16"),
    Case(  # OpenLLaMA 3B in small: head_dim is no multiple of 16, FFN of one and a half tiles
        "openllama",
        _llama(_shape(80, 4, 4, 192, vocab=517), rms_norm_eps=1e-6),
        seed=0,
        dtype="f16",
        published_keys=True,
    ),
    Case("llama-biases", _llama(_shape(48, 6, 2, 200), attention_bias=True, mlp_bias=True), seed=1),
    Case(
        "llama3-published-keys",
        _llama(_shape(64, 8, 2, 256), tie_word_embeddings=True, **_LLAMA3_ROPE),
        seed=3,
        dtype="bf16",
        prompt_length=45,
        published_keys=True,
        ablation=_rope("default", 500000.0),
    ),
    Case(
        "llama3-new-keys",
        _llama(_shape(64, 4, 2, 136), **_LLAMA3_ROPE),
        seed=0,
        dtype="bf16",
        prompt_length=45,
        ablation=_rope("default", 500000.0),
    ),
    Case(
        "llama-rope-linear",
        _llama(_shape(64, 4, 2, 128), **_rope("linear", factor=4.0)),
        seed=2,
        published_keys=True,
        ablation=_NO_ROPE_SCALING,
    ),
    Case(  # prompt and answer stay within max_position_embeddings: nothing is scaled
        "llama-rope-dynamic-within",
        _llama(_shape(64, 4, 2, 128), max_position_embeddings=64, **_rope("dynamic", factor=2.0)),
        seed=0,
    ),
    Case(
        "llama-rope-yarn",
        _llama(
            _shape(64, 4, 2, 128),
            max_position_embeddings=64,
            **_rope("yarn", factor=4.0, original_max_position_embeddings=16),
        ),
        seed=0,
        prompt_length=37,
        ablation=_NO_ROPE_SCALING,
    ),
    Case(  # Yi-34B in small: seven query heads per KV head
        "yi",
        _llama(_shape(112, 14, 2, 320, vocab=640), **_rope("default", 5000000.0)),
        seed=2,
        dtype="bf16",
        shard_size="200KB",
        published_keys=True,
        ablation=_NO_ROPE_SCALING,
    ),
    Case(  # Mistral 7B v0.1 in small: the prompt is longer than the window
        "mistral-sliding",
        {"model_type": "mistral"} | _shape(64, 8, 2, 224) | {"sliding_window": 8},
        seed=0,
        published_keys=True,
        ablation={"sliding_window": None},
    ),
    Case(
        "mistral-full",
        {"model_type": "mistral"} | _shape(60, 6, 3, 200, head_dim=16) | {"sliding_window": None},
        seed=0,
        dtype="bf16",
    ),
    Case(
        "qwen2-tied",
        {"model_type": "qwen2"} | _shape(56, 7, 1, 152) | {"tie_word_embeddings": True, "rms_norm_eps": 1e-6},
        seed=0,
        dtype="bf16",
        published_keys=True,
    ),
    Case(  # the first layer sees everything, the others the last six tokens
        "qwen2-sliding",
        {"model_type": "qwen2"}
        | _shape(64, 4, 2, 200)
        | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
        seed=3,
        shard_size="100KB",
        ablation={"layer_types": ["full_attention"] * 3},
    ),
    Case(
        "qwen3",
        {"model_type": "qwen3"} | _shape(64, 4, 2, 168, head_dim=24) | {"tie_word_embeddings": True},
        seed=0,
        dtype="bf16",
        shard_size="100KB",
    ),
    Case(
        "qwen3-biases",
        {"model_type": "qwen3"} | _shape(40, 5, 5, 129, head_dim=8) | {"attention_bias": True},
        seed=6,
    ),
)


def case(name: str) -> Case:
    from tests.reference.families import FAMILIES  # which has cases

    return next(known for known in (*CASES, *FAMILIES) if known.name == name)
