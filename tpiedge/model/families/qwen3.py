"""Qwen 3."""

from tpiedge.model.families.family import Family, Gguf, chosen_windows, common, shape

_QWEN_ENDS = {"bos_token_id": 151643, "eos_token_id": 151645}
_QWEN3_SIZES = {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151936}
_QWEN3 = common("Qwen3", 1e-6, 1000000.0, True, max_position_embeddings=40960, **_QWEN_ENDS, **_QWEN3_SIZES)

_PRESETS = {
    "qwen3-0.6b": shape(_QWEN3, 1024, 3072, 28, 16),
    "qwen3-1.7b": shape(_QWEN3, 2048, 6144, 28, 16),
    "qwen3-4b": shape(_QWEN3, 2560, 9728, 36, 32),
    "qwen3-8b": shape(_QWEN3, 4096, 12288, 36, 32, tie_word_embeddings=False),
    "qwen3-14b": shape(_QWEN3, 5120, 17408, 40, 40, tie_word_embeddings=False),
}

FAMILY = Family(
    "qwen3",
    "Qwen3",
    {"num_key_value_heads": 32, "head_dim": 128},
    head_norms=True,
    windows=chosen_windows,
    presets=_PRESETS,
    gguf=Gguf("qwen3"),
)
