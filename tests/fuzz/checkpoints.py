"""A checkpoint's files, but for its tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.fuzz.forms import JSON, SAFETENSORS
from tests.fuzz.parser import CONFIG, Parser, Read, words_of

_CONFIGS = (
    CONFIG,
    CONFIG
    | {
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 64},
        "eos_token_id": [1, 2], "bos_token_id": 1, "rope_theta": 500000.0, "head_dim": 8,
    },
    CONFIG | {"model_type": "qwen3", "layer_types": ["full_attention"], "sliding_window": 4, "head_dim": 4},
    CONFIG | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
    CONFIG | {"model_type": "mistral", "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
    CONFIG | {"rope_scaling": {"type": "linear", "factor": 2.0}},
    CONFIG
    | {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]}},
    CONFIG | {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": False}},
    CONFIG | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm"}},
)  # fmt: skip


def _config(folder: Path) -> Read:
    from tpiedge.model.config import ModelConfig
    from tpiedge.model.spec import model_spec

    def read(data: bytes) -> None:
        (folder / "config.json").write_bytes(data)
        config = ModelConfig.open(folder)
        if config.num_layers <= 64:
            model_spec(config)
        assert ModelConfig.from_json(config.to_json()) == config

    return read


def _generation_config(folder: Path) -> Read:
    from tpiedge.local.prepare import usual_sampling
    from tpiedge.model.config import ModelConfig

    (folder / "config.json").write_text(json.dumps(CONFIG))

    def read(data: bytes) -> None:
        (folder / "generation_config.json").write_bytes(data)
        ModelConfig.open(folder)
        usual_sampling(folder)

    return read


def _safetensors(folder: Path) -> Read:
    from tpiedge.model.checkpoint import Checkpoint
    from tpiedge.model.spec import model_spec

    plain, gptq = folder / "plain", folder / "gptq"
    for place, config in ((plain, CONFIG), (gptq, _CONFIGS[-2])):
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config))

    def read(data: bytes) -> None:
        place = gptq if b"qweight" in data else plain
        (place / "model.safetensors").write_bytes(data)
        checkpoint = Checkpoint.open(place)
        checkpoint.check(model_spec(checkpoint.config))

    return read


def _safetensors_seeds() -> list[bytes]:
    from tpiedge.model.config import ModelConfig
    from tpiedge.model.spec import model_spec

    def file(tensors: Mapping[str, tuple[str, list[int], int]]) -> bytes:
        header, end = {}, 0
        for name, (dtype, shape, nbytes) in tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + nbytes]}
            end += nbytes
        return SAFETENSORS.write([header, bytes(end)])

    spec = model_spec(ModelConfig.from_huggingface(CONFIG))
    plain: dict[str, tuple[str, list[int], int]] = {}
    for blob in (spec.embedding, *spec.layers, spec.head):
        for matrix in blob.matrices:
            plain[matrix.source] = ("BF16", list(matrix.source_shape), 2 * matrix.rows * matrix.cols)
        for vector in blob.vectors:
            plain[vector.source] = ("F32", [vector.length], 4 * vector.length)
    packed = "model.layers.0.self_attn.q_proj"
    quantised = {name: tensor for name, tensor in plain.items() if name != f"{packed}.weight"} | {
        f"{packed}.qweight": ("I32", [2, 16], 128),
        f"{packed}.qzeros": ("I32", [2, 2], 16),
        f"{packed}.scales": ("F16", [2, 16], 64),
        f"{packed}.g_idx": ("I32", [16], 64),
    }
    return [
        file(plain),
        file(quantised),
        SAFETENSORS.write([{"__metadata__": {"format": "pt"}, "a": _tensor(2)}, bytes(8)]),
    ]


def _tensor(count: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}


def _index(folder: Path) -> Read:
    from tpiedge.model.checkpoint import Checkpoint

    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name in ("a", "b"):
        (folder / f"{name}.safetensors").write_bytes(SAFETENSORS.write([{name: _tensor(2)}, bytes(8)]))

    def read(data: bytes) -> None:
        (folder / "model.safetensors.index.json").write_bytes(data)
        Checkpoint.open(folder)

    return read


PARSERS: Final = (
    Parser(
        "safetensors", _safetensors, _safetensors_seeds, form=SAFETENSORS,
        words=words_of("dtype shape data_offsets __metadata__ F64 F16 BF16 I8 BOOL F8_E4M3 { } [ ] , :"),
    ),
    Parser(
        "index", _index,
        lambda: [b'{"metadata":{"total_size":8},"weight_map":{"a":"a.safetensors","b":"b.safetensors"}}'],
        form=JSON, words=words_of("weight_map a.safetensors ../a.safetensors /a.safetensors A.safetensors"),
    ),
    Parser(
        "config", _config, lambda: [json.dumps(config).encode() for config in _CONFIGS], form=JSON,
        words=words_of("rope_scaling rope_parameters factor yarn dynamic default attention_factor mscale"),
    ),
    Parser(
        "generation-config", _generation_config, form=JSON,
        seeds=lambda: [b'{"temperature":0.7,"top_k":40,"top_p":0.9,"eos_token_id":[1,2],"do_sample":true,'
                       b'"repetition_penalty":1.1,"min_p":0.05,"bos_token_id":1}'],
    ),
)  # fmt: skip
