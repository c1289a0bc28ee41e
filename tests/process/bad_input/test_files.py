import json
import os
import shutil
import struct
import subprocess

import pytest

from tests.process.bad_input.refusal import RESOURCE, change_config, run_model, the_line


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nowhere", "no model 'nowhere'"),
        ("/nowhere/at/all", "no model '/nowhere/at/all'"),
        ("meta-llama/Llama-2-7b-hf", "tpiedge pull meta-llama/Llama-2-7b-hf"),
        ("", "no model ''"),
        ("two\nlines", r"no model 'two\nlines'"),
        ("x" * 5000, "no model 'xxx"),
    ],
)
def test_missing_model_is_refused(fails, cache, name, expected):
    assert expected in fails("run", "--model", name, "--prompt-ids", "1")
    assert expected in fails("pack", name) if name else True
    assert not cache.exists()


@pytest.mark.fault("F1", "refused in one line")
def test_oversized_safetensors_header_is_refused(fails, cache, model):
    (model / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    assert "the header claims 4611686018427387904 bytes" in fails(*run_model(model))


@pytest.mark.fault("F2", "refused in one line")
def test_weight_index_pointing_outside_is_refused(fails, cache, model):
    (model / "model.safetensors").rename(model.parent / "secret.safetensors")
    index = {"weight_map": {"model.norm.weight": "../secret.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "is not a plain file name" in fails(*run_model(model))


@pytest.mark.fault("F2", "refused; the file is not even opened")
def test_a_pickle_checkpoint_is_never_opened(fails, cache, model):
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    assert "pickle files" in fails(*run_model(model))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"hidden_size": -80}, "hidden_size is -80"),
        ({"num_attention_heads": 3}, "num_attention_heads (3)"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"model_type": "gpt_neox"}, "model_type is 'gpt_neox'; supported are"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"type": "linear", "factor": -2.0}}, "factor is -2.0"),
        ({"quantization_config": {"bits": 4}}, "quant_method is ''; supported are gptq, awq and mxfp4"),
        ({"num_local_experts": 8}, "mixture-of-experts"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.fault("F4", "one line that names the field")
def test_invalid_configs_are_refused(fails, cache, model, changes, expected):
    change_config(model, **changes)
    assert expected in fails(*run_model(model))
    assert not cache.exists()


@pytest.mark.parametrize("content", [b"{", b'{"model": {"type": "Magic"}}'], ids=range(2))
@pytest.mark.fault("F4", "one line that names the file")
def test_broken_tokenizer_is_refused(fails, text_model, tmp_path, content):
    folder = tmp_path / "model"
    shutil.copytree(text_model, folder)
    (folder / "tokenizer.json").write_bytes(content)
    assert "tokenizer.json is not a tokenizer that can be read" in fails(
        "run", "--model", folder, "--prompt", "ba"
    )


@pytest.fixture
def pack(tpiedge, model, tmp_path):
    assert tpiedge("pack", model, "--out", tmp_path / "pack").status == 0
    return tmp_path / "pack"


def flip_byte(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.fault("F5", "blob and matrix are named; nothing is answered")
def test_a_damaged_unit_is_named(fails, tpiedge, pack):
    manifest = json.loads((pack / "manifest.json").read_text())["manifest"]
    blob = pack / "blobs" / manifest["blobs"]["layers"][1]
    flip_byte(blob, blob.stat().st_size - 5000)  # in the last matrix: down
    ended = tpiedge(*run_model(pack), "--nodes", 2, "--threads", 1)
    assert ended.status == RESOURCE
    line = the_line(ended.err)
    assert blob.name in line
    assert "down" in line
    assert "is damaged" in line
    assert ended.out == ""


@pytest.fixture
def disk(tmp_path, request):
    if os.geteuid() != 0:
        pytest.skip("root: needed to mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", request.param, "tmpfs", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"mounts: cannot mount a small file system here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    "disk", ["size=300k", "size=1m,nr_inodes=5"], ids=["no space", "no files"], indirect=True
)
@pytest.mark.fault("F6", "one line; nothing is left")
def test_packing_on_a_full_disk_fails_and_leaves_nothing(fails, model, disk):
    before = shutil.disk_usage(disk).used
    change_config(model, num_hidden_layers=1)
    line = fails(*run_model(model), "--cache", disk, status=RESOURCE)
    assert "is full" in line
    assert "needed" in line
    assert "are free" in line
    assert [path.name for path in disk.rglob("*") if path.name != "packs"] == []
    assert shutil.disk_usage(disk).used == before
