"""The shapes of real models: the `config.json` that each publisher ships, without its weights.

Used where a real shape is wanted without its weights: random packs, random checkpoints, planning,
measuring. Facts only; the keys are those of the published files (hence `rope_theta` and `rope_scaling`
rather than the newer `rope_parameters`).
"""

import copy
from collections.abc import Mapping
from types import MappingProxyType

from tpiedge.errors import UserError


def _config(architecture: str, dtype: str, **facts: object) -> dict[str, object]:
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": architecture.lower(),
        "hidden_act": "silu",
        "torch_dtype": dtype,
        **facts,
    }


def _shape(
    hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, vocab: int, positions: int
) -> dict[str, object]:
    return {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
    }


def _llama2(
    hidden: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int,
    *,
    positions: int = 4096,
    vocab: int = 32000,
    eps: float = 1e-5,
    theta: float = 10000.0,
    dtype: str = "float16",
) -> dict[str, object]:
    return _config(
        "Llama",
        dtype,
        **_shape(hidden, ffn, layers, heads, kv_heads, vocab, positions),
        rms_norm_eps=eps,
        rope_theta=theta,
        rope_scaling=None,
        attention_bias=False,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )


def _llama3(
    hidden: int,
    ffn: int,
    layers: int,
    heads: int,
    *,
    factor: float | None = None,
    tied: bool = False,
    eos: int | list[int] = 128001,
) -> dict[str, object]:
    """Llama 3 (`factor` None: 8192 positions) and 3.1 to 3.3 (`factor` stretches them to 131072)."""
    scaling = {
        "factor": factor,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    return _config(
        "Llama",
        "bfloat16",
        **_shape(hidden, ffn, layers, heads, 8, 128256, 131072 if factor else 8192),
        head_dim=hidden // heads,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=scaling if factor else None,
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=tied,
        bos_token_id=128000,
        eos_token_id=eos,
    )


def _mistral(*, vocab: int, theta: float, window: int | None) -> dict[str, object]:
    return _config(
        "Mistral",
        "bfloat16",
        **_shape(4096, 14336, 32, 32, 8, vocab, 32768),
        rms_norm_eps=1e-5,
        rope_theta=theta,
        sliding_window=window,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )


def _qwen25(
    hidden: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int,
    *,
    vocab: int = 151936,
    positions: int = 131072,
    tied: bool = True,
) -> dict[str, object]:
    return _config(
        "Qwen2",
        "bfloat16",
        **_shape(hidden, ffn, layers, heads, kv_heads, vocab, positions),
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        sliding_window=positions,
        use_sliding_window=False,
        max_window_layers=layers,
        tie_word_embeddings=tied,
        bos_token_id=151643,
        eos_token_id=151643,
    )


def _qwen3(hidden: int, ffn: int, layers: int, heads: int, *, tied: bool = True) -> dict[str, object]:
    return _config(
        "Qwen3",
        "bfloat16",
        **_shape(hidden, ffn, layers, heads, 8, 151936, 40960),
        head_dim=128,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        rope_scaling=None,
        attention_bias=False,
        sliding_window=None,
        use_sliding_window=False,
        max_window_layers=layers,
        tie_word_embeddings=tied,
        bos_token_id=151643,
        eos_token_id=151645,
    )


_PRESETS: dict[str, dict[str, object]] = {
    "tinyllama": _llama2(2048, 5632, 22, 32, 4, positions=2048, dtype="bfloat16"),
    "llama2-3b": _llama2(
        3200, 8640, 26, 32, 32, positions=2048, eps=1e-6
    ),  # OpenLLaMA 3B: there is no Llama 2-3B
    "llama2-7b": _llama2(4096, 11008, 32, 32, 32),
    "llama2-13b": _llama2(5120, 13824, 40, 40, 40),
    "llama2-70b": _llama2(8192, 28672, 80, 64, 8),
    "yi-34b": _llama2(7168, 20480, 60, 56, 8, vocab=64000, theta=5000000.0, dtype="bfloat16"),
    "llama3-8b": _llama3(4096, 14336, 32, 32),
    "llama3.1-8b": _llama3(4096, 14336, 32, 32, factor=8.0),
    "llama3.1-70b": _llama3(8192, 28672, 80, 64, factor=8.0),
    "llama3.2-1b": _llama3(2048, 8192, 16, 32, factor=32.0, tied=True),
    "llama3.2-3b": _llama3(3072, 8192, 28, 24, factor=32.0, tied=True),
    "llama3.3-70b": _llama3(8192, 28672, 80, 64, factor=8.0, eos=[128001, 128008, 128009]),
    "mistral-7b": _mistral(vocab=32000, theta=10000.0, window=4096),
    "mistral-7b-v0.3": _mistral(vocab=32768, theta=1000000.0, window=None),
    "qwen2.5-0.5b": _qwen25(896, 4864, 24, 14, 2, positions=32768),
    "qwen2.5-1.5b": _qwen25(1536, 8960, 28, 12, 2),
    "qwen2.5-3b": _qwen25(2048, 11008, 36, 16, 2, positions=32768),
    "qwen2.5-7b": _qwen25(3584, 18944, 28, 28, 4, vocab=152064, tied=False),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32, tied=False),
}

PRESETS: Mapping[str, Mapping[str, object]] = MappingProxyType(_PRESETS)
"""Preset name -> the model's config.json. Read-only; `preset` gives a copy to change."""


def preset(name: str) -> dict[str, object]:
    """A fresh copy of the config.json of `name`. Raises UserError that lists the names."""
    try:
        return copy.deepcopy(_PRESETS[name])
    except KeyError:
        raise UserError(f"no preset {name!r}: choose one of {', '.join(sorted(_PRESETS))}") from None
