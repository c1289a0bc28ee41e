"""Small model files from an untrusted source."""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 200,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}


@pytest.fixture
def small_config() -> dict[str, Any]:
    return json.loads(json.dumps(SMALL))


def pack_header(header: bytes, data: bytes = b"") -> bytes:
    """Returns a safetensors file with this header and data."""
    return struct.pack("<Q", len(header)) + header + data


def safetensors(tensors: Mapping[str, tuple[str, list[int], int]]) -> bytes:
    """A valid file of zeros: name -> (dtype, shape, bytes)."""
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape, nbytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + nbytes]}
        position += nbytes
    return pack_header(json.dumps(header).encode(), bytes(position))


@pytest.fixture
def make_safetensors() -> Callable[..., bytes]:
    return safetensors


@pytest.fixture
def make_file() -> Callable[..., bytes]:
    return pack_header


@pytest.fixture
def folder(tmp_path: Path, small_config: dict[str, Any]) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(small_config))
    return tmp_path
