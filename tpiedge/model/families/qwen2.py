"""Qwen 2 and 2.5."""

from tpiedge.model.families.family import Family, Gguf, chosen_windows, common, shape

_QWEN25 = common("Qwen2", 1e-6, 1000000.0, True, bos_token_id=151643, eos_token_id=151643)

_PRESETS = {
    "qwen2.5-0.5b": shape(_QWEN25, 896, 4864, 24, 14, 2, 151936, 32768),
    "qwen2.5-1.5b": shape(_QWEN25, 1536, 8960, 28, 12, 2, 151936, 131072),
    "qwen2.5-3b": shape(_QWEN25, 2048, 11008, 36, 16, 2, 151936, 32768),
    "qwen2.5-7b": shape(_QWEN25, 3584, 18944, 28, 28, 4, 152064, 131072, tie_word_embeddings=False),
}

FAMILY = Family(
    "qwen2",
    "Qwen2",
    {"num_key_value_heads": 32},
    attention_bias=False,
    qkv_bias=True,
    windows=chosen_windows,
    presets=_PRESETS,
    gguf=Gguf("qwen2"),
)
