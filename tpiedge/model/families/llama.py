"""Llama 1 to 3, SmolLM2, Yi, TinyLlama, and others with Llama's layers."""

from collections.abc import Mapping
from typing import Any

from tpiedge.model.families.family import EXPERT_COUNTS, EXPERT_KEYS, Family, Gguf, common, shape

_LLAMA2 = common("Llama", 1e-5, 10000.0, bos_token_id=1, eos_token_id=2, torch_dtype="float16")
_LLAMA3_SIZES = {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192}
_LLAMA3 = common("Llama", 1e-5, 500000.0, False, bos_token_id=128000, eos_token_id=128001, **_LLAMA3_SIZES)
_SCALING = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_LLAMA31 = {**_LLAMA3, "max_position_embeddings": 131072, "rope_scaling": _SCALING}
_LLAMA32 = {**_LLAMA31, "rope_scaling": {**_SCALING, "factor": 32.0}, "tie_word_embeddings": True}
_SMOLLM2_SIZES = {"vocab_size": 49152, "max_position_embeddings": 8192}
_SMOLLM2 = common("Llama", 1e-5, 100000.0, True, bos_token_id=1, eos_token_id=2, **_SMOLLM2_SIZES)


_PRESETS = {
    "tinyllama": shape(_LLAMA2, 2048, 5632, 22, 32, 4, 32000, 2048, torch_dtype="bfloat16"),
    # OpenLLaMA 3B: there is no Llama 2-3B
    "llama2-3b": shape(_LLAMA2, 3200, 8640, 26, 32, 32, 32000, 2048, rms_norm_eps=1e-6),
    "llama2-7b": shape(_LLAMA2, 4096, 11008, 32, 32, 32, 32000, 4096),
    "llama2-13b": shape(_LLAMA2, 5120, 13824, 40, 40, 40, 32000, 4096),
    "llama2-70b": shape(_LLAMA2, 8192, 28672, 80, 64, 8, 32000, 4096),
    "yi-34b": shape(
        _LLAMA2, 7168, 20480, 60, 56, 8, 64000, 4096, rope_theta=5000000.0, torch_dtype="bfloat16"
    ),
    "llama3-8b": shape(_LLAMA3, 4096, 14336, 32, 32),
    "llama3.1-8b": shape(_LLAMA31, 4096, 14336, 32, 32),
    "llama3.1-70b": shape(_LLAMA31, 8192, 28672, 80, 64),
    "llama3.2-1b": shape(_LLAMA32, 2048, 8192, 16, 32),
    "llama3.2-3b": shape(_LLAMA32, 3072, 8192, 28, 24),
    "llama3.3-70b": shape(_LLAMA31, 8192, 28672, 80, 64, eos_token_id=[128001, 128008, 128009]),
    "smollm2-135m": shape(_SMOLLM2, 576, 1536, 30, 9, 3),
    "smollm2-360m": shape(_SMOLLM2, 960, 2560, 32, 15, 5),
    "smollm2-1.7b": shape(_SMOLLM2, 2048, 8192, 24, 32, 32, rope_theta=130000.0),
}


def _more(config: Mapping[str, Any]) -> Mapping[str, object]:
    """Returns Mixtral's name if there are experts."""
    mixtral = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    return mixtral if EXPERT_COUNTS[0] in config else {}


FAMILY = Family(
    "llama",
    "Llama",
    {"bos_token_id": 1, "eos_token_id": 2},
    mlp_bias=None,
    presets=_PRESETS,
    gguf=Gguf("llama", paired=True, keys=EXPERT_KEYS, more=_more),
)
