"""Checkpoints, packs and disks that cannot be used."""

import json
import os
import shutil
import struct
import subprocess

import pytest

from tests.process.bad_input.refusal import RESOURCE, change_config, run_model, the_line

# The model's files.


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
def test_a_model_that_is_not_there(fails, cache, name, expected):
    assert expected in fails("run", "--model", name, "--prompt-ids", "1")
    assert expected in fails("pack", name) if name else True
    assert not cache.exists()


def test_a_file_that_is_no_model(fails, cache, tmp_path):
    path = tmp_path / "notes.md"
    path.write_text("notes")
    assert f"{path} is no model: give the folder that it is in" in fails(*run_model(path))


def test_a_folder_without_config(fails, cache, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in fails(*run_model(tmp_path / "empty"))


def test_a_truncated_file_of_weights(fails, cache, model):
    path = model / "model.safetensors"
    os.truncate(path, path.stat().st_size - 100)
    line = fails(*run_model(model))
    assert "model.safetensors" in line
    assert "unfinished download" in line


@pytest.mark.fault("F1", "refused in one line")
def test_a_header_bomb(fails, cache, model):
    (model / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    assert "the header claims 4611686018427387904 bytes" in fails(*run_model(model))


@pytest.mark.fault("F1", "refused in one line")
def test_a_header_of_far_too_many_tensors(fails, cache, model):
    entry = b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
    header = b"{" + b"".join(entry % index for index in range(110_000))[:-1] + b"}"
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "more than 50000 tensors" in fails(*run_model(model))


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/secret.safetensors", "a/b.safetensors"])
@pytest.mark.fault("F2", "refused in one line")
def test_an_index_that_points_outside(fails, cache, model, name):
    (model / "model.safetensors").rename(model.parent / "secret.safetensors")
    index = {"weight_map": {"model.norm.weight": name}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "is not a plain file name" in fails(*run_model(model))


@pytest.mark.fault("F2", "refused in one line")
def test_a_link_that_points_outside(fails, cache, model):
    (model / "model.safetensors").rename(model.parent / "secret.safetensors")
    (model / "model.safetensors").symlink_to("../secret.safetensors")
    assert "links to a file outside" in fails(*run_model(model))


@pytest.mark.fault("F2", "refused; the file is not even opened")
def test_a_pickle_checkpoint_is_never_opened(fails, cache, model):
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    assert "pickle files only" in fails(*run_model(model))


def test_a_tensor_of_another_shape_than_the_config(fails, cache, model):
    change_config(model, intermediate_size=200)
    assert "has shape 192 x 80, config.json asks for 200 x 80" in fails(*run_model(model))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": 4}, "layers.3"),
        ({"hidden_size": -80}, "hidden_size is -80"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": "80"}, "hidden_size is '80'"),
        ({"num_attention_heads": 3}, "num_attention_heads (3)"),
        ({"vocab_size": 1e300}, "vocab_size is 1e+300"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"max_position_embeddings": True}, "max_position_embeddings is True"),
        ({"model_type": "gpt_neox"}, "model_type is 'gpt_neox'; supported are"),
        ({"model_type": ["llama"]}, "model_type is ['llama']"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"type": "linear", "factor": -2.0}}, "factor is -2.0"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quant_method is ''; supported are gptq and awq"),
        ({"num_local_experts": 8}, "mixture-of-experts"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.fault("F4", "one line that names the field")
def test_impossible_configs(fails, cache, model, changes, expected):
    change_config(model, **changes)
    assert expected in fails(*run_model(model))
    assert not cache.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a":' * 100_000, "\xff", '{"hidden_size": ' + "9" * 5000 + "}"], ids=range(6)
)
def test_a_config_that_is_no_json_object(fails, cache, model, text):
    (model / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json" in fails(*run_model(model))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": {"type": "Magic"}}'], ids=range(4))
@pytest.mark.fault("F4", "one line that names the file")
def test_a_broken_tokenizer(fails, text_model, tmp_path, content):
    folder = tmp_path / "model"
    shutil.copytree(text_model, folder)
    (folder / "tokenizer.json").write_bytes(content)
    assert "tokenizer.json is not a tokenizer that can be read" in fails(
        "run", "--model", folder, "--prompt", "ba"
    )


def test_a_folder_that_holds_something_else_is_not_packed_into(fails, cache, model, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    assert "mine is not a pack" in fails("pack", model, "--out", tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["diary.txt"]


# A damaged pack.


@pytest.fixture
def pack(tpiedge, model, tmp_path):
    assert tpiedge("pack", model, "--out", tmp_path / "pack").status == 0
    return tmp_path / "pack"


def flip_byte(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


@pytest.mark.fault("F5", "blob and matrix are named; nothing is answered")
def test_a_damaged_unit_is_named(fails, tpiedge, pack):
    """By --verify, and by the node that loads it. (The embedding is read by row and not covered here.)"""
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


def test_a_pack_that_lacks_bytes(fails, pack):
    blob = max((pack / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    os.truncate(blob, blob.stat().st_size - 4096)
    assert "pack again" in fails(*run_model(pack))
    blob.unlink()
    assert f"the pack lacks {blob}" in fails(*run_model(pack))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"manifest": {}, "checksum": ""}'], ids=range(4))
def test_a_spoilt_manifest(fails, pack, content):
    (pack / "manifest.json").write_bytes(content)
    assert "manifest.json" in fails(*run_model(pack))
    assert "manifest.json" in fails("unpack", pack, pack.parent / "out")


def test_a_forged_manifest(fails, pack):
    path = pack / "manifest.json"
    path.write_text(path.read_text().replace('"hidden_size": 80', '"hidden_size": 88'))
    assert "the checksum differs" in fails(*run_model(pack))


# A full disk.


@pytest.fixture
def tiny_disk(tmp_path):
    """Mounts a file system of the given limits."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = []

    def mount(limits):
        if os.geteuid() != 0:
            pytest.skip("root: needed to mount a small file system")
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", limits, "tmpfs", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            pytest.skip(f"mounts: cannot mount a small file system here: {made.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("limits", ["size=300k", "size=1m,nr_inodes=5"], ids=["no space", "no files"])
@pytest.mark.fault("F6", "one line; nothing is left")
def test_a_full_disk(fails, model, tiny_disk, limits):
    """Without space it is seen beforehand, without free file entries in the middle of writing."""
    disk = tiny_disk(limits)
    before = shutil.disk_usage(disk).used
    change_config(model, num_hidden_layers=1)
    line = fails(*run_model(model), "--cache", disk, status=RESOURCE)
    assert "is full" in line
    assert "needed" in line
    assert "are free" in line
    assert [path.name for path in disk.rglob("*") if path.name != "packs"] == []
    assert shutil.disk_usage(disk).used == before


def test_a_folder_that_cannot_be_written(fails, model, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot write to" in fails(*run_model(model), "--cache", tmp_path / "file" / "cache")
