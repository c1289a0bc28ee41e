"""What differs between the supported model families, as transformers 5.x reads their configs."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["FAMILIES", "Family"]


@dataclass(frozen=True)
class Family:
    """Defaults and traits of one `model_type`. `None` in a bias means: the config's flag decides."""

    kv_heads: int | None  # where config.json says nothing; None: as many as query heads
    head_dim: int | None  # where config.json says nothing; None: hidden_size / num_attention_heads
    bos_id: int | None
    eos_id: int | None
    attention_bias: bool | None  # on q, k, v and o
    qkv_bias: bool  # on q, k, v only, whatever the config says
    mlp_bias: bool | None
    qk_norm: bool
    windows: str  # "none", "all" (sliding_window for every layer) or "layers" (from max_window_layers on)


_FAMILIES = {
    "llama": Family(None, None, 1, 2, None, False, None, False, "none"),
    "mistral": Family(8, None, 1, 2, False, False, False, False, "all"),
    "qwen2": Family(32, None, None, None, False, True, False, False, "layers"),
    "qwen3": Family(32, 128, None, None, None, False, False, True, "layers"),
}

FAMILIES: Mapping[str, Family] = MappingProxyType(_FAMILIES)
