"""GGUF files, read back by a reader that was written from the format's description."""

import importlib.util
import struct
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from tools.peers import random_gguf
from tools.peers.gguf import write_gguf
from tools.peers.random_gguf import Q4_K, Q6_K, random_tensors, write_random_gguf
from tpiedge.errors import UserError
from tpiedge.model.config import ModelConfig
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.presets import preset
from tpiedge.pack.source import TensorSource

TOOL = Path(__file__).parents[4] / "tools" / "make_checkpoint.py"
HEADS, KV_HEADS, HEAD_DIM, LAYERS = 4, 2, 8, 2
HIDDEN = HEADS * HEAD_DIM


def make(folder: Path, dtype: str = "bf16", **changes: object) -> Path:
    spec = importlib.util.spec_from_file_location("make_checkpoint", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    config = preset("tinyllama") | {
        "hidden_size": HIDDEN,
        "intermediate_size": 24,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": 300,
    }
    tool.make_checkpoint(folder, config | changes, dtype=dtype, seed=3, shard_size=20_000)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("gguf") / "model")


@pytest.fixture(scope="module")
def written(checkpoint) -> tuple[dict, dict]:
    path = checkpoint.parent / "model.gguf"
    write_gguf(checkpoint, path)
    return read(path.read_bytes())


def read(data: bytes) -> tuple[dict[str, object], dict[str, tuple[int, np.ndarray]]]:
    at = 0

    def take(form: str):
        nonlocal at
        found = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return found[0]

    def text() -> str:
        return take(f"{take('Q')}s").decode()

    assert take("4s") == b"GGUF"
    assert take("I") == 3
    tensors, keys = take("Q"), take("Q")
    values = {text(): {8: text, 4: lambda: take("I"), 6: lambda: take("f")}[take("I")]() for _ in range(keys)}
    infos = []
    for _ in range(tensors):
        name = text()
        sizes = [take("Q") for _ in range(take("I"))]
        infos.append((name, sizes[::-1], take("I"), take("Q")))
    start = at + -at % 32
    found = {}
    for name, shape, kind, offset in infos:
        assert offset % 32 == 0
        dtype = {0: "<f4", 30: "<u2"}[kind]
        flat = np.frombuffer(data, dtype, int(np.prod(shape)), start + offset)
        found[name] = kind, flat.reshape(shape)
    return values, found


def tensor(checkpoint: Path, name: str) -> np.ndarray:
    for path in checkpoint.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            if name in file.keys():  # noqa: SIM118 (not a mapping)
                values = file.get_tensor(name).float().numpy()
                return (values.view("<u4") >> 16).astype("<u2")
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("lm_head.weight", "output.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"),
    ],
)
def test_matrices_keep_their_bits(checkpoint, written, source, name):
    kind, values = written[1][name]
    assert kind == 30
    np.testing.assert_array_equal(values, tensor(checkpoint, source))


@pytest.mark.parametrize(("part", "heads"), [("q", HEADS), ("k", KV_HEADS)])
def test_query_and_key_rows_are_permuted_for_rope(checkpoint, written, part, heads):
    source = tensor(checkpoint, f"model.layers.0.self_attn.{part}_proj.weight").astype(np.int64)
    stored = written[1][f"blk.0.attn_{part}.weight"][1].astype(np.int64)
    old = source.reshape(heads, HEAD_DIM, HIDDEN)
    new = stored.reshape(heads, HEAD_DIM, HIDDEN)
    half = HEAD_DIM // 2
    for pair in range(half):
        np.testing.assert_array_equal(new[:, 2 * pair], old[:, pair])
        np.testing.assert_array_equal(new[:, 2 * pair + 1], old[:, pair + half])


def test_q4_k_m_has_the_mix_of_llama_cpp() -> None:
    tensors = random_tensors(ModelConfig.from_huggingface(preset("tinyllama"), "tinyllama"), "q4_k_m")
    kinds = {tensor.name: tensor.kind for tensor in tensors if not tensor.is_vector}
    layers = {0, 1, 4, 7, 10, 13, 16, 19, 20, 21}  # 2 and 2 at the ends, every third between
    names = {f"blk.{layer}.{part}.weight" for layer in layers for part in ("attn_v", "ffn_down")}
    assert {name for name, kind in kinds.items() if kind == Q6_K.kind} == names | {"output.weight"}
    assert set(kinds.values()) == {Q4_K.kind, Q6_K.kind}
    assert (Q4_K.nbytes, Q6_K.nbytes) == (144, 210)


@pytest.mark.parametrize("precision", ["q4", "q8", "q4_k_m", "bf16"])
def test_random_mixture_has_stacked_experts_and_routers_of_their_own(
    precision, tmp_path, monkeypatch
) -> None:
    small = preset("qwen3-30b-a3b") | {
        "hidden_size": 256,
        "moe_intermediate_size": 512,
        "num_hidden_layers": 8,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "vocab_size": 300,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    monkeypatch.setattr(random_gguf, "preset", lambda _name: dict(small))
    path = tmp_path / "mixture.gguf"
    write_random_gguf("small", precision, path)
    model = GgufModel.open(path)
    expected = ModelConfig.from_huggingface(small, "small")
    assert [one.experts for one in model.config.layers] == [one.experts for one in expected.layers]
    routers = [model.tensors[f"model.layers.{layer}.mlp.gate.weight"] for layer in range(8)]
    assert {router.kind for router in routers} == {"F32"}
    with closing(TensorSource(model.tensors)) as source:
        read = [source.read(f"model.layers.{layer}.mlp.gate.weight") for layer in range(8)]
    assert len({values.tobytes() for values in read}) == 8
    assert all(0.015 < values.std() < 0.025 for values in read)
    kinds = [model.tensors[f"model.layers.{layer}.mlp.experts.4.down_proj.weight"].kind for layer in range(8)]
    more = {0, 3, 6, 7}  # an eighth at each end, and every third between
    assert (
        kinds
        == {
            "q4_k_m": ["Q6_K" if layer in more else "Q4_K" for layer in range(8)],
            "bf16": ["BF16"] * 8,
            "q8": ["Q8_0"] * 8,
            "q4": ["Q4_0"] * 8,
        }[precision]
    )


_OSS = {"sliding_window": 8, "intermediate_size": 96, "num_local_experts": 6}
_GEMMA = {"num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 96, "intermediate_size": 160}


@pytest.mark.parametrize(("name", "sizes"), [("gpt-oss-20b", _OSS), ("gemma4-26b-a4b", _GEMMA)])
def test_random_files_of_other_mixtures_can_be_read(name, sizes, tmp_path, monkeypatch) -> None:
    small = (
        preset(name) | {"hidden_size": 64, "vocab_size": 300, "bos_token_id": 1, "eos_token_id": 2} | sizes
    )
    monkeypatch.setattr(random_gguf, "preset", lambda _name: dict(small))
    path = tmp_path / "mixture.gguf"
    write_random_gguf("small", "q4", path)
    found = GgufModel.open(path).config
    expected = ModelConfig.from_huggingface(small, "small")
    assert [one.experts for one in found.layers] == [one.experts for one in expected.layers]
    assert [one.ffn for one in found.layers] == [one.ffn for one in expected.layers]
    assert [one.attention.window for one in found.layers] == [one.attention.window for one in expected.layers]
    with pytest.raises(UserError, match="no blocks of q4_k_m: take q4 or q8"):
        write_random_gguf("small", "q4_k_m", tmp_path / "none.gguf")
