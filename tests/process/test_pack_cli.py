import json
import re

import pytest
import torch
from safetensors import safe_open

from tests.reference import answered

SPEED = ("seconds", "source_bytes", "source_bytes_per_s")


def tensors(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    return found


def check_speed(record, folder):
    seconds, source_bytes, rate = (record.pop(name) for name in SPEED)
    assert source_bytes == sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert 0 < seconds < 60
    assert rate == pytest.approx(source_bytes / seconds)


@pytest.mark.thin
def test_a_pack_runs_and_is_unpacked_bit_for_bit(here, tpiedge, generate, references, tmp_path):
    found = references("mistral-full")
    folder = found.folder
    packed = here("pack", folder, "--out", tmp_path / "pack", "--verify", "--json")
    assert packed.status == 0, packed.err
    record = json.loads(packed.out)
    size = sum(path.stat().st_size for path in (tmp_path / "pack" / "blobs").iterdir())
    check_speed(record, folder)
    path = str(tmp_path / "pack")
    assert record == {"path": path, "name": None, "bytes": size, "reused": False, "verified": True}
    prompt = ("--prompt-ids", ",".join(map(str, found.prompt_ids)), "--max-tokens", len(found.greedy_ids))
    record = generate("--model", tmp_path / "pack", "--nodes", 2, *prompt, "--ignore-eos")
    assert record["token_ids"] == list(found.greedy_ids)
    assert record["precision"] == "bf16"
    unpacked = tpiedge("unpack", tmp_path / "pack", tmp_path / "back")
    assert unpacked.status == 0, unpacked.err
    source, back = tensors(folder), tensors(tmp_path / "back")
    assert set(back) == set(source)
    assert {tensor.dtype for tensor in back.values()} == {torch.bfloat16}
    for tensor_name, tensor in source.items():
        assert back[tensor_name].view(torch.uint8).equal(tensor.view(torch.uint8))
    assert (tmp_path / "back" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "pack"]


def test_quantised_pack_reports_its_quality_loss(here, tpiedge, references, tmp_path):
    folder = references("qwen2-tied").folder
    packed = here("pack", folder, "--precision", "q4", "--out", tmp_path / "pack", "--verify", "--json")
    assert packed.status == 0, packed.err
    record = json.loads(packed.out)
    quality = record.pop("quality")
    check_speed(record, folder)
    assert set(record) == {"path", "name", "bytes", "reused", "verified"}
    by_matrix = {tensor["matrix"]: tensor["precision"] for tensor in quality["tensors"]}
    assert by_matrix == dict.fromkeys(("q", "k", "v", "o", "gate", "up", "down"), "q4") | {"embedding": "q8"}
    for tensor in quality["tensors"]:
        assert 19 < tensor["sqnr_db"] - 24 * (tensor["precision"] == "q8") < 27
    again = tpiedge("pack", folder, "--precision", "q4", "--out", tmp_path / "pack")
    assert again.out.startswith(f"{tmp_path / 'pack'} (")
    part = r"rounding changes the weights by [4-7](\.\d)? %"
    assert re.search(rf", already there, {part}, SQNR {quality['sqnr_db']:.1f} dB\)\n$", again.out)

    unpacked = here("unpack", tmp_path / "pack", tmp_path / "back")
    assert unpacked.status == 0, unpacked.err
    assert unpacked.err.splitlines() == [
        "note: quantised matrices are exported in f32, as the numbers that they stand for"
    ]
    source, back = tensors(folder), tensors(tmp_path / "back")
    assert back.keys() == source.keys()
    stored = {tensor["tensor"]: tensor for tensor in quality["tensors"]}
    for tensor_name, tensor in source.items():
        found, expected = back[tensor_name].double(), tensor.double()
        if tensor_name not in stored:
            assert found.equal(expected)
            continue
        assert back[tensor_name].dtype == torch.float32
        ratio = 10 * ((expected**2).sum() / ((found - expected) ** 2).sum()).log10()
        assert ratio == pytest.approx(stored[tensor_name]["sqnr_db"], abs=0.01)


def test_chat_works_through_a_pipe(tpiedge, generate, text_model):
    """Two turns: the second prompt holds the first question, its answer and the second question."""
    flags = ("--threads", 1, "--context", 128, "--max-tokens", 5, "--temperature", 0)
    said = "ba be\n\nbi bo\n/clear\nba be\n/exit\nbu\n"
    ended = tpiedge("run", "--model", text_model, *flags, "--nodes", 2, stdin=said)
    assert ended.status == 0, ended.err
    assert all(line.startswith(("packing ", "loading weights: ")) for line in ended.err.splitlines())
    first, second, cleared = ended.out.splitlines()
    once = generate("--model", text_model, "--raw", "--prompt", "ba be ", "--max-tokens", 5)
    assert f" {first}" == once["text"], "only a text that goes on begins with its space"
    twice = generate("--model", text_model, "--raw", "--prompt", f"ba be {first} bi bo ", "--max-tokens", 5)
    assert f" {second}" == twice["text"]
    assert cleared == first


UNUSED = (
    "note: no layer uses model.layers.4.self_attn.k_proj.weight to model.layers.6.self_attn.k_norm.weight"
)


@pytest.mark.parametrize(
    ("name", "notes"),
    [("mistral3", []), ("gemma4-a4b", []), ("gemma4-wrapped", [UNUSED]), ("gemma4-unused-keys", [UNUSED])],
)
def test_the_text_of_a_model_with_more_is_unpacked_as_a_model_of_text(
    here, references, tmp_path, name, notes
):
    found = references(name)
    assert here("pack", found.folder, "--out", tmp_path / "pack").status == 0
    unpacked = here("unpack", tmp_path / "pack", tmp_path / "back")
    assert unpacked.status == 0
    assert [line.partition(": a")[0] for line in unpacked.err.splitlines()] == notes
    again = answered(found.case, tmp_path / "back")
    assert (again.logits_TV == found.logits_TV).all()
