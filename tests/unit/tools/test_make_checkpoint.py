"""Random checkpoints load in transformers, repeat for a seed, and never appear half written."""

import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open

from tpiedge.errors import DiskFull, UserError
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
    """A preset cut down to a few megabytes, with its own structure."""
    config = preset(name) | {
        "hidden_size": 1024,
        "intermediate_size": 200,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "vocab_size": 500,
        "bos_token_id": 0,
        "eos_token_id": [499, 300],
    }
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


@pytest.mark.parametrize("name", ["tinyllama", "llama3.2-1b", "mistral-7b", "qwen2.5-0.5b", "qwen3-0.6b"])
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


def test_values_are_normal_with_the_stated_spread(tool, tmp_path):
    found = values(make(tool, tmp_path / "model", small("qwen2.5-0.5b")))
    up = found["model.layers.0.mlp.up_proj.weight"].double()
    assert float(up.mean()) == pytest.approx(0, abs=0.001)
    assert float(up.std()) == pytest.approx(0.02, rel=0.02)
    assert float((up.abs() < up.std()).double().mean()) == pytest.approx(0.683, abs=0.01)
    norms = torch.cat([t for name, t in found.items() if "norm" in name])
    assert float(norms.mean()) == pytest.approx(1, abs=0.002)
    assert float(norms.std()) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_chunks_change_nothing(tool, monkeypatch, tmp_path, dtype):
    whole = make(tool, tmp_path / "whole", small("tinyllama"), dtype)
    monkeypatch.setattr(tool, "CHUNK", 3000)  # two rows of 1024
    pieces = make(tool, tmp_path / "pieces", small("tinyllama"), dtype)
    assert (whole / "model.safetensors").read_bytes() == (pieces / "model.safetensors").read_bytes()


def test_an_existing_folder_is_refused(tool, tmp_path):
    with pytest.raises(UserError, match="exists already"):
        make(tool, tmp_path, small("tinyllama"))


def test_a_full_disk_is_said_before_anything_is_written(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=70_000_000))
    with pytest.raises(DiskFull, match=r"1\.\d GB are needed in all, 70\.0 MB are free"):
        make(tool, tmp_path / "model", small("tinyllama", intermediate_size=50_000))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_nothing_behind(tool, tmp_path, monkeypatch):
    def fail(self, nbytes):
        raise KeyboardInterrupt

    monkeypatch.setattr(tool.Progress, "advance", fail)
    with pytest.raises(KeyboardInterrupt):
        make(tool, tmp_path / "model", small("tinyllama"))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_is_one_line_and_leaves_nothing(tool, tmp_path, monkeypatch):
    def fail(self, nbytes):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tool.Progress, "advance", fail)
    with pytest.raises(DiskFull, match="is full"):
        make(tool, tmp_path / "model", small("tinyllama"))
    assert list(tmp_path.iterdir()) == []


class TestCommand:
    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(ROOT / "tools" / "make_checkpoint.py"), *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=50, check=False
        )

    @pytest.mark.skipif(sys.platform != "linux", reason="system: reads the peak from /proc")
    def test_writes_a_preset_in_little_memory(self, tmp_path):
        """qwen2.5-0.5b with one layer: 0.30 GB of weights, most of it in one tensor."""
        code = (
            "import runpy, sys; sys.argv = sys.argv[1:]\n"
            "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
            "finally: print(open('/proc/self/status').read())"
        )
        arguments = ["--preset", "qwen2.5-0.5b", "--layers", "1", "--dtype", "bf16", str(tmp_path / "m")]
        command = [sys.executable, "-c", code, str(ROOT / "tools" / "make_checkpoint.py"), *arguments]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=50, check=False
        )
        assert done.returncode == 0, done.stderr
        peak = next(line for line in done.stdout.splitlines() if line.startswith("VmHWM:"))
        assert int(peak.split()[1]) * 1024 < 200e6
        assert "MB/s" in done.stderr
        assert "\r" not in done.stderr  # not a terminal
        assert json.loads((tmp_path / "m" / "config.json").read_text())["num_hidden_layers"] == 1
        assert (tmp_path / "m" / "model.safetensors").stat().st_size > 290e6
        shutil.rmtree(tmp_path / "m")  # pytest would keep it

    def test_errors_are_one_line_with_their_exit_status(self, tmp_path):
        for arguments in (["--layers", "0"], ["--shard-size", "many"]):
            done = self.run("--preset", "tinyllama", *arguments, str(tmp_path / "m"))
            assert done.returncode == 2
            assert done.stderr.startswith("error: ")
            assert done.stderr.count("\n") == 1
