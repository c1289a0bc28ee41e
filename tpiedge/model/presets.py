"""Defines aliases of models on the hub, and presets, which are shapes of real models.

An alias is a file `configs/models/NAME.toml`. A preset is a published `config.json` without default values. It has the
older keys `rope_theta` and `rope_scaling`.
"""

import copy
import functools
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from tpiedge.errors import UserError

_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "max_position_embeddings"),
)


def _family(
    architecture: str, eps: float, theta: float, tied: bool = False, **facts: object
) -> dict[str, object]:
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


def _shape(family: dict[str, object], *sizes: int, **facts: object) -> dict[str, object]:
    return family | dict(zip(_SIZES, sizes, strict=False)) | facts


_LLAMA2 = _family("Llama", 1e-5, 10000.0, bos_token_id=1, eos_token_id=2, torch_dtype="float16")
_LLAMA3_SIZES = {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192}
_LLAMA3 = _family("Llama", 1e-5, 500000.0, False, bos_token_id=128000, eos_token_id=128001, **_LLAMA3_SIZES)
_SCALING = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_LLAMA31 = {**_LLAMA3, "max_position_embeddings": 131072, "rope_scaling": _SCALING}
_LLAMA32 = {**_LLAMA31, "rope_scaling": {**_SCALING, "factor": 32.0}, "tie_word_embeddings": True}
_MISTRAL = _family("Mistral", 1e-5, 10000.0, bos_token_id=1, eos_token_id=2, sliding_window=4096)
_QWEN25 = _family("Qwen2", 1e-6, 1000000.0, True, bos_token_id=151643, eos_token_id=151643)
_QWEN_ENDS = {"bos_token_id": 151643, "eos_token_id": 151645}
_QWEN3_SIZES = {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151936}
_QWEN3 = _family("Qwen3", 1e-6, 1000000.0, True, max_position_embeddings=40960, **_QWEN_ENDS, **_QWEN3_SIZES)
_SMOLLM2_SIZES = {"vocab_size": 49152, "max_position_embeddings": 8192}
_SMOLLM2 = _family("Llama", 1e-5, 100000.0, True, bos_token_id=1, eos_token_id=2, **_SMOLLM2_SIZES)

PRESETS: Final[Mapping[str, Mapping[str, object]]] = {
    "tinyllama": _shape(_LLAMA2, 2048, 5632, 22, 32, 4, 32000, 2048, torch_dtype="bfloat16"),
    # OpenLLaMA 3B: there is no Llama 2-3B
    "llama2-3b": _shape(_LLAMA2, 3200, 8640, 26, 32, 32, 32000, 2048, rms_norm_eps=1e-6),
    "llama2-7b": _shape(_LLAMA2, 4096, 11008, 32, 32, 32, 32000, 4096),
    "llama2-13b": _shape(_LLAMA2, 5120, 13824, 40, 40, 40, 32000, 4096),
    "llama2-70b": _shape(_LLAMA2, 8192, 28672, 80, 64, 8, 32000, 4096),
    "yi-34b": _shape(
        _LLAMA2, 7168, 20480, 60, 56, 8, 64000, 4096, rope_theta=5000000.0, torch_dtype="bfloat16"
    ),
    "llama3-8b": _shape(_LLAMA3, 4096, 14336, 32, 32),
    "llama3.1-8b": _shape(_LLAMA31, 4096, 14336, 32, 32),
    "llama3.1-70b": _shape(_LLAMA31, 8192, 28672, 80, 64),
    "llama3.2-1b": _shape(_LLAMA32, 2048, 8192, 16, 32),
    "llama3.2-3b": _shape(_LLAMA32, 3072, 8192, 28, 24),
    "llama3.3-70b": _shape(_LLAMA31, 8192, 28672, 80, 64, eos_token_id=[128001, 128008, 128009]),
    "mistral-7b": _shape(_MISTRAL, 4096, 14336, 32, 32, 8, 32000, 32768),
    "mistral-7b-v0.3": _shape(
        _MISTRAL, 4096, 14336, 32, 32, 8, 32768, 32768, rope_theta=1000000.0, sliding_window=None
    ),
    "qwen2.5-0.5b": _shape(_QWEN25, 896, 4864, 24, 14, 2, 151936, 32768),
    "qwen2.5-1.5b": _shape(_QWEN25, 1536, 8960, 28, 12, 2, 151936, 131072),
    "qwen2.5-3b": _shape(_QWEN25, 2048, 11008, 36, 16, 2, 151936, 32768),
    "qwen2.5-7b": _shape(_QWEN25, 3584, 18944, 28, 28, 4, 152064, 131072, tie_word_embeddings=False),
    "qwen3-0.6b": _shape(_QWEN3, 1024, 3072, 28, 16),
    "qwen3-1.7b": _shape(_QWEN3, 2048, 6144, 28, 16),
    "qwen3-4b": _shape(_QWEN3, 2560, 9728, 36, 32),
    "qwen3-8b": _shape(_QWEN3, 4096, 12288, 36, 32, tie_word_embeddings=False),
    "qwen3-14b": _shape(_QWEN3, 5120, 17408, 40, 40, tie_word_embeddings=False),
    "smollm2-135m": _shape(_SMOLLM2, 576, 1536, 30, 9, 3),
    "smollm2-360m": _shape(_SMOLLM2, 960, 2560, 32, 15, 5),
    "smollm2-1.7b": _shape(_SMOLLM2, 2048, 8192, 24, 32, 32, rope_theta=130000.0),
}


def preset(name: str) -> dict[str, object]:
    """Returns a copy of the config.json of preset `name`. Raises UserError."""
    try:
        return copy.deepcopy(dict(PRESETS[name]))
    except KeyError:
        raise UserError(f"no preset {name!r}: choose one of {', '.join(sorted(PRESETS))}") from None


# The folder is in an installed package, or beside the package in a checkout.
_FOLDERS = tuple(Path(__file__).parents[up] / "configs" / "models" for up in (1, 2))


@dataclass(frozen=True)
class Alias:
    """`repo` is "org/name". `quant` is the tag of a GGUF file; "" means a checkpoint. `shape` names a preset. If
    `gated` is true, users must accept a licence. `also` has other names, like Ollama's name for the default size."""

    name: str
    repo: str
    gated: bool
    licence: str
    shape: str
    quant: str = ""
    also: tuple[str, ...] = ()
    note: str = ""


@functools.cache
def aliases() -> Mapping[str, Alias]:
    """Returns name -> Alias, sorted."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    found: dict[str, Alias] = {}
    for path in sorted(folder.glob("*.toml")) if folder else ():
        values = {"name": path.stem, **tomllib.loads(path.read_text("utf-8"))}
        found[path.stem] = msgspec.convert(values, Alias)
    return MappingProxyType(found)


def find_alias(name: str) -> Alias | None:
    """Returns the alias called `name`, ignoring case, else None. Ollama's "llama3.2:3b" and "llama3.2" find
    "llama3.2-3b"."""
    plain = name.lower().removesuffix(":latest").replace(":", "-", 1).removesuffix("-instruct")
    return aliases().get(plain) or next((one for one in aliases().values() if plain in one.also), None)


# Families that people know from Ollama, and that `model/config.py` lacks.
_UNSUPPORTED = re.compile(
    "(codegemma|command-r|deepseek-v|gemma|glm|gpt-oss|granite|kimi|llama4|llava|minicpm|ministral|mixtral|moondream|"
    "olmo|phi|qwen2.5vl|qwen3-coder|qwen3-next|qwen3-vl|qwen3.5|qwen3[:-](30|235)b|smollm3|starcoder)(?![a-z])[^/]*",
    re.IGNORECASE,
)
_SIZE = re.compile(r"[:-]e?(\d{1,4}(?:\.\d{1,4})?)([mb])\b")


def unsupported(name: str) -> str | None:
    """Returns a message if `name` is of an unsupported family, else None. The message names aliases of similar
    size."""
    if not _UNSUPPORTED.fullmatch(name):
        return None
    wanted = _billions(name) or 4.0  # which runs well on a few weak machines
    sized = [(_billions(one.name), one.name) for one in aliases().values() if not one.gated]
    near = sorted((abs(math.log(size / wanted)), alias) for size, alias in sized if size)[:2]
    return (
        f"{name} is not supported yet; nearest: {' or '.join(alias for _, alias in near)} (tpiedge ls --all)"
    )


def _billions(name: str) -> float | None:
    match = _SIZE.search(name.lower())
    return float(match[1]) * (1e-3 if match[2] == "m" else 1) or None if match else None
