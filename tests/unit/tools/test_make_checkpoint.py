import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tpiedge.model.presets import preset

ROOT = Path(__file__).parents[3]
TEXT = "Hello wörld, 你好 \n\t 😀  x"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("make_checkpoint", ROOT / "tools" / "make_checkpoint.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small(name: str, **changes: object) -> dict[str, object]:
    config = preset(name) | {
        "hidden_size": 1024,
        "intermediate_size": 200,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "vocab_size": 500,
        "eos_token_id": [499, 300],
    }
    if "bos_token_id" in config:
        config["bos_token_id"] = 0
    if "head_dim" in config:
        config["head_dim"] = 32
    return config | changes


def make(tool, out: Path, config: dict[str, object], dtype="f32", seed=0, shard_size=10**9) -> Path:
    tool.make_checkpoint(out, config, dtype=dtype, seed=seed, shard_size=shard_size)
    return out


def values(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    return found


@pytest.mark.parametrize(
    "name", ["tinyllama", "llama3.2-1b", "mistral-7b", "qwen2.5-0.5b", "qwen3-0.6b", "olmo2-1b"]
)
@pytest.mark.parametrize(("dtype", "shard_size"), [("bf16", 10**9), ("f32", 3_000_000)])
def test_transformers_loads_model_and_tokenizer(tool, tmp_path, name, dtype, shard_size):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = make(tool, tmp_path / "model", small(name), dtype, shard_size=shard_size)
    assert (folder / "model.safetensors").exists() == (shard_size == 10**9)
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert model.dtype == {"bf16": torch.bfloat16, "f32": torch.float32}[dtype]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == TEXT
    assert (ids[0] == tokenizer.bos_token_id == 0) == (name in ("tinyllama", "llama3.2-1b", "mistral-7b"))
    assert tokenizer.eos_token_id == 499
    assert all(tokenizer.decode([i]) for i in range(500))
    with torch.no_grad():
        logits_TV = model(torch.tensor([ids])).logits[0].float()
    assert 0.3 < float(logits_TV.std()) < 2
    assert len(set(logits_TV.argmax(-1).tolist())) > 5


def test_values_depend_on_the_seed_and_not_on_the_shards(tool, tmp_path):
    one = values(make(tool, tmp_path / "one", small("tinyllama")))
    other = values(make(tool, tmp_path / "shards", small("tinyllama"), shard_size=1000))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    reseeded = values(make(tool, tmp_path / "reseeded", small("tinyllama"), seed=1))
    assert not any(torch.equal(one[name], reseeded[name]) for name in one)
    assert not torch.equal(one["model.layers.0.mlp.up_proj.weight"], one["model.layers.1.mlp.up_proj.weight"])
