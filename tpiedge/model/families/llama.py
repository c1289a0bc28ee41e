"""Llama 1 to 3, SmolLM2, Yi, TinyLlama, and others with Llama's layers."""

from tpiedge.model.families.family import Family

FAMILY = Family(
    "llama",
    "Llama",
    {"bos_token_id": 1, "eos_token_id": 2},
    mlp_bias=None,
    gguf="llama",
    gguf_paired=True,
)
