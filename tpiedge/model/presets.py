"""Short names of models on the hub, and the shapes of real models.

A short name is a file `configs/models/NAME.toml` with the model's place and terms. Its shape is a preset: the published
`config.json` with its older keys `rope_theta` and `rope_scaling`, for random packs, planning and measuring.
"""

import copy
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

from tpiedge.errors import UserError
from tpiedge.model.config import ModelConfig

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)


def _config(
    architecture: str, sizes: tuple[int, ...], eps: float, theta: float, **facts: object
) -> dict[str, object]:
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": architecture.lower(),
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        **dict(zip(_SIZES, sizes, strict=True)),
        "rms_norm_eps": eps,
        "rope_theta": theta,
        **facts,
    }


def _llama2(
    *sizes: int, eps: float = 1e-5, theta: float = 10000.0, dtype: str = "float16"
) -> dict[str, object]:
    facts = {
        "torch_dtype": dtype,
        "rope_scaling": None,
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    return _config("Llama", sizes, eps, theta, **facts, bos_token_id=1, eos_token_id=2)


def _llama3(
    *sizes: int, factor: float | None = None, tied: bool = False, eos: int | list[int] = 128001
) -> dict[str, object]:
    """Llama 3 with 8192 positions, or, with `factor`, 3.1 to 3.3 with 131072."""
    scaling = {
        "factor": factor,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    return _config(
        "Llama",
        (*sizes, 8, 128256, 131072 if factor else 8192),
        1e-5,
        500000.0,
        head_dim=sizes[0] // sizes[3],
        rope_scaling=scaling if factor else None,
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=tied,
        bos_token_id=128000,
        eos_token_id=eos,
    )


def _mistral(vocab: int, theta: float, window: int | None) -> dict[str, object]:
    sizes = (4096, 14336, 32, 32, 8, vocab, 32768)
    facts = {"sliding_window": window, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}
    return _config("Mistral", sizes, 1e-5, theta, **facts)


def _qwen(
    architecture: str, sizes: tuple[int, ...], tied: bool, eos: int, **facts: object
) -> dict[str, object]:
    return _config(
        architecture,
        sizes,
        1e-6,
        1000000.0,
        use_sliding_window=False,
        max_window_layers=sizes[2],
        tie_word_embeddings=tied,
        bos_token_id=151643,
        eos_token_id=eos,
        **facts,
    )


def _qwen25(*sizes: int, tied: bool = True) -> dict[str, object]:
    return _qwen("Qwen2", sizes, tied, 151643, sliding_window=sizes[-1])


def _qwen3(*sizes: int, tied: bool = True) -> dict[str, object]:
    facts = {"head_dim": 128, "rope_scaling": None, "attention_bias": False, "sliding_window": None}
    return _qwen("Qwen3", (*sizes, 8, 151936, 40960), tied, 151645, **facts)


_PRESETS: dict[str, dict[str, object]] = {
    "tinyllama": _llama2(2048, 5632, 22, 32, 4, 32000, 2048, dtype="bfloat16"),
    # OpenLLaMA 3B: there is no Llama 2-3B
    "llama2-3b": _llama2(3200, 8640, 26, 32, 32, 32000, 2048, eps=1e-6),
    "llama2-7b": _llama2(4096, 11008, 32, 32, 32, 32000, 4096),
    "llama2-13b": _llama2(5120, 13824, 40, 40, 40, 32000, 4096),
    "llama2-70b": _llama2(8192, 28672, 80, 64, 8, 32000, 4096),
    "yi-34b": _llama2(7168, 20480, 60, 56, 8, 64000, 4096, theta=5000000.0, dtype="bfloat16"),
    "llama3-8b": _llama3(4096, 14336, 32, 32),
    "llama3.1-8b": _llama3(4096, 14336, 32, 32, factor=8.0),
    "llama3.1-70b": _llama3(8192, 28672, 80, 64, factor=8.0),
    "llama3.2-1b": _llama3(2048, 8192, 16, 32, factor=32.0, tied=True),
    "llama3.2-3b": _llama3(3072, 8192, 28, 24, factor=32.0, tied=True),
    "llama3.3-70b": _llama3(8192, 28672, 80, 64, factor=8.0, eos=[128001, 128008, 128009]),
    "mistral-7b": _mistral(32000, 10000.0, 4096),
    "mistral-7b-v0.3": _mistral(32768, 1000000.0, None),
    "qwen2.5-0.5b": _qwen25(896, 4864, 24, 14, 2, 151936, 32768),
    "qwen2.5-1.5b": _qwen25(1536, 8960, 28, 12, 2, 151936, 131072),
    "qwen2.5-3b": _qwen25(2048, 11008, 36, 16, 2, 151936, 32768),
    "qwen2.5-7b": _qwen25(3584, 18944, 28, 28, 4, 152064, 131072, tied=False),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32, tied=False),
}

PRESETS: Mapping[str, Mapping[str, object]] = MappingProxyType(_PRESETS)


def preset(name: str) -> dict[str, object]:
    """Returns a copy of the config.json of `name`. Raises UserError that lists the names."""
    try:
        return copy.deepcopy(_PRESETS[name])
    except KeyError:
        raise UserError(f"no preset {name!r}: choose one of {', '.join(sorted(_PRESETS))}") from None


# In an installed package, or beside it in a checkout.
_FOLDERS = tuple(Path(__file__).parents[up] / "configs" / "models" for up in (1, 2))


@dataclass(frozen=True)
class Alias:
    """`repo` is "org/name", `revision` a branch, tag or commit, `shape` the name of a preset. The hub gives `gated`
    files only to accounts that have accepted the licence."""

    name: str
    repo: str
    revision: str
    gated: bool
    licence: str
    shape: str
    note: str = ""

    @property
    def config(self) -> ModelConfig:
        return ModelConfig.from_huggingface(preset(self.shape), f"preset {self.shape}")


@functools.cache
def aliases() -> Mapping[str, Alias]:
    """Returns name -> Alias, sorted; empty if the installation lacks the files."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    paths = sorted(folder.glob("*.toml")) if folder else []
    found = (
        msgspec.convert({"name": path.stem, **tomllib.loads(path.read_text("utf-8"))}, Alias)
        for path in paths
    )
    return MappingProxyType({alias.name: alias for alias in found})
