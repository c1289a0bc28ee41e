"""Packs by the command: written, run from, read back; and text through a whole cluster."""

import json
import os
import shutil
import subprocess

import pytest
import torch
from safetensors import safe_open

from tests.process.command import COMMAND
from tpiedge.local.prepare import prepare

SPEED = ("seconds", "source_bytes", "source_bytes_per_s")


def tensors(folder):
    """Name -> the tensor of a checkpoint."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    return found


def check_speed(record, folder):
    """Takes what was measured out of the record of packing the checkpoint in `folder`."""
    seconds, source_bytes, rate = (record.pop(name) for name in SPEED)
    assert source_bytes == sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert 0 < seconds < 60
    assert rate == pytest.approx(source_bytes / seconds)


def ids(found):
    return ",".join(map(str, found.prompt_ids))


@pytest.mark.thin
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("llama-gqa-odd", "bfloat16"), ("qwen3-biases", "float32"), ("qwen2-tied", "bfloat16")],
)
def test_there_and_back_bit_for_bit(tpiedge, references, tmp_path, name, dtype):
    folder = references(name).folder
    packed = tpiedge("pack", folder, "--out", tmp_path / "pack", "--verify", "--json")
    assert packed.status == 0, packed.err
    record = json.loads(packed.out)
    size = sum(path.stat().st_size for path in (tmp_path / "pack" / "blobs").iterdir())
    check_speed(record, folder)
    path = str(tmp_path / "pack")
    assert record == {"path": path, "name": None, "bytes": size, "reused": False, "verified": True}
    unpacked = tpiedge("unpack", tmp_path / "pack", tmp_path / "back")
    assert unpacked.status == 0, unpacked.err
    source, back = tensors(folder), tensors(tmp_path / "back")
    assert set(back) == set(source)
    assert {tensor.dtype for tensor in back.values()} == {getattr(torch, dtype)}
    for tensor_name, tensor in source.items():
        assert back[tensor_name].shape == tensor.shape
        assert back[tensor_name].view(torch.uint8).equal(tensor.view(torch.uint8))
    assert (tmp_path / "back" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "pack"]


def test_a_pack_runs_without_its_checkpoint(tpiedge, generate, references, tmp_path):
    found = references("mistral-full")
    assert tpiedge("pack", found.folder, "--out", tmp_path / "pack").status == 0
    arguments = ("--nodes", 2, "--prompt-ids", ids(found), "--max-tokens", 24, "--ignore-eos")
    record = generate("--model", tmp_path / "pack", *arguments)
    assert record["token_ids"] == list(found.greedy_ids)
    assert record["precision"] == "bf16"
    # What was unpacked is a checkpoint again.
    assert tpiedge("unpack", tmp_path / "pack", tmp_path / "back").status == 0
    record = generate("--model", tmp_path / "back", *arguments)
    assert record["token_ids"] == list(found.greedy_ids)


def test_the_first_run_packs_and_the_second_does_not(tpiedge, references, tmp_path):
    found = references("llama-mqa-tied")
    arguments = (
        "run",
        "--model",
        found.folder,
        "--threads",
        1,
        "--prompt-ids",
        ids(found),
        "--max-tokens",
        2,
    )
    first = tpiedge(*arguments, TPIEDGE_CACHE=str(tmp_path))
    assert first.status == 0, first.err
    assert "packing llama-mqa-tied as f32: " in first.err
    (pack,) = (tmp_path / "packs").iterdir()
    written = pack.stat().st_mtime_ns
    second = tpiedge(*arguments, TPIEDGE_CACHE=str(tmp_path))
    assert "packing" not in second.err
    assert second.out == first.out
    assert [path.stat().st_mtime_ns for path in (tmp_path / "packs").iterdir()] == [written]


def test_both_precisions_of_a_model_live_side_by_side(generate, references, tmp_path):
    """bf16 holds a bf16 source exactly, so the widened pack gives the same bits."""
    found = references("llama-gqa-odd")
    arguments = (
        "--model", found.folder, "--cache", tmp_path, "--prompt-ids", ids(found), "--max-tokens", 6,
        "--ignore-eos", "--logprobs", 3,
    )  # fmt: skip
    narrow = generate(*arguments, "--precision", "f32")
    wide = generate(*arguments, "--precision", "f32", "--compute", "f32")
    assert (narrow["precision"], wide["precision"]) == ("bf16", "f32")
    assert narrow["token_ids"] == wide["token_ids"] == list(found.greedy_ids[:6])
    assert len(list((tmp_path / "packs").iterdir())) == 2


def test_bf16_arithmetic_stays_close(generate, references):
    """Rounded to bf16, the logits of this model move by less than the margin of its first tokens."""
    found = references("qwen3")
    arguments = (
        "--model",
        found.folder,
        "--prompt-ids",
        ids(found),
        "--max-tokens",
        4,
        "--ignore-eos",
        "--nodes",
        2,
    )
    record = generate(*arguments, "--precision", "bf16", "--compute", "bf16", "--logprobs", 1)
    assert record["plan"]["compute"] == "bf16"
    assert record["token_ids"][0] == found.greedy_ids[0]


def test_a_random_pack_of_a_real_shape(tpiedge, tmp_path):
    arguments = (
        "pack",
        "--random",
        "tinyllama",
        "--distinct-layers",
        1,
        "--json",
        "--out",
        tmp_path / "pack",
    )
    first, second = tpiedge(*arguments), tpiedge(*arguments)
    assert (first.status, second.status) == (0, 0), first.err + second.err
    one, two = json.loads(first.out), json.loads(second.out)
    assert (one.pop("reused"), two.pop("reused")) == (False, True)
    assert one.pop("seconds") > 0
    assert two.pop("seconds") is None
    # Random numbers are made, not read.
    assert [record.pop(name) for record in (one, two) for name in SPEED[1:]] == [None] * 4
    assert one == two
    assert set(one) == {"path", "name", "bytes", "verified"}
    # One layer, the embedding and the head: 22 layers would take 2.2 GB.
    assert 340e6 < one["bytes"] < 360e6
    assert len(list((tmp_path / "pack" / "blobs").glob("*.hashes"))) == 3


# Quantised.


@pytest.mark.parametrize(
    ("name", "others"), [("llama-gqa-odd", {"head": "q8"}), ("qwen2-tied", {"embedding": "q8"})]
)
def test_a_quantised_pack_says_what_was_lost(tpiedge, references, tmp_path, name, others):
    folder = references(name).folder
    packed = tpiedge("pack", folder, "--precision", "q4", "--out", tmp_path / "pack", "--verify", "--json")
    assert packed.status == 0, packed.err
    record = json.loads(packed.out)
    quality = record.pop("quality")
    check_speed(record, folder)
    assert set(record) == {"path", "name", "bytes", "reused", "verified"}
    by_matrix = {tensor["matrix"]: tensor["precision"] for tensor in quality["tensors"]}
    assert by_matrix == dict.fromkeys(("q", "k", "v", "o", "gate", "up", "down"), "q4") | others
    for tensor in quality["tensors"]:
        assert 19 < tensor["sqnr_db"] - 24 * (tensor["precision"] == "q8") < 27
    again = tpiedge("pack", folder, "--precision", "q4", "--out", tmp_path / "pack")
    assert again.out.startswith(f"{tmp_path / 'pack'} (")
    assert again.out.endswith(f", already there, SQNR {quality['sqnr_db']:.1f} dB)\n")

    unpacked = tpiedge("unpack", tmp_path / "pack", tmp_path / "back")
    assert unpacked.status == 0, unpacked.err
    assert unpacked.err.splitlines() == [
        "note: quantised weights come back in f32 as they are used, not as they were before"
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


def test_a_table_for_people_at_a_terminal(references, tmp_path):
    controller, terminal = os.openpty()
    try:
        arguments = ["pack", str(references("llama-gqa-odd").folder), "--precision", "q4"]
        command = [COMMAND, *arguments, "--out", str(tmp_path / "pack")]
        subprocess.run(command, stdout=terminal, stderr=subprocess.DEVNULL, check=True)
        lines = os.read(controller, 1 << 16).decode().splitlines()
    finally:
        os.close(terminal)
        os.close(controller)
    assert lines[0].split() == ["matrix", "stored", "SQNR", "least", "tensor"]
    assert [line.split()[:2] for line in lines[2:-1]] == [
        *([name, "q4"] for name in ("q", "k", "v", "o", "gate", "up", "down")),
        ["head", "q8"],
    ]
    assert lines[-1].startswith(str(tmp_path / "pack"))


def test_every_storage_has_a_folder_of_its_own(tpiedge, references, tmp_path):
    folder = references("llama-gqa-odd").folder
    wanted = {
        "q4": (),
        "q4-head-bf16": ("--head-precision", "bf16"),
        "q4-embedding-q8-head-q4": ("--embedding-precision", "q8", "--head-precision", "q4"),
        "q4-plain": ("--no-search",),
    }
    for flags in wanted.values():
        assert tpiedge("pack", folder, "--precision", "q4", *flags, "--cache", tmp_path).status == 0
    packs = json.loads(tpiedge("ls", "--json", "--cache", tmp_path).out)["packs"]
    assert {pack["path"].split("/")[-1].rpartition("-")[0] for pack in packs} == {
        f"{folder.name}-{label}" for label in wanted
    }
    assert {(pack["model"], pack["precision"]) for pack in packs} == {(folder.name, "q4")}
    shown = json.loads(tpiedge("show", folder, "--json", "--cache", tmp_path).out)
    assert sorted(shown["packs"]) == sorted(pack["path"] for pack in packs)
    assert shown["nbytes"]["f32"] > shown["nbytes"]["bf16"] > shown["nbytes"]["q8"] > shown["nbytes"]["q4"]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--precision", "bf16", "--head-precision", "q8"), "needs --precision q8 or q4"),
        (("--no-search",), "needs --precision q8 or q4"),
    ],
)
def test_flags_that_contradict_each_other(tpiedge, references, tmp_path, flags, complaint):
    ended = tpiedge("pack", references("llama-gqa-odd").folder, *flags, "--out", tmp_path / "pack")
    assert ended.status == 2
    assert len(ended.err.splitlines()) == 1
    assert complaint in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_random_pack_in_four_bits(tpiedge, tmp_path):
    arguments = ("pack", "--random", "qwen2.5-0.5b", "--distinct-layers", 1, "--precision", "q4")
    packed = tpiedge(*arguments, "--json", "--cache", tmp_path)
    assert packed.status == 0, packed.err
    record = json.loads(packed.out)
    assert record["path"] == str(tmp_path / "packs" / "random-qwen2.5-0.5b-q4-k1-s0")
    # The tied embedding in q8: 151936 x 896 x 8.5 bits; a layer in q4: 15 million weights.
    assert 150e6 < record["bytes"] < 158e6
    assert 21 < record["quality"]["tensors"][1]["sqnr_db"] < 22.5


# Text.


def test_a_drawn_answer_says_its_seed_and_is_repeated_by_it(generate, tpiedge, text_model):
    arguments = (
        "--model",
        text_model,
        "--raw",
        "--prompt",
        "ba be",
        "--max-tokens",
        12,
        "--ignore-eos",
        "--threads",
        1,
    )
    drawn = generate(*arguments, "--temperature", 1.5)
    again = generate(*arguments, "--temperature", 1.5, "--seed", drawn["seed"])
    assert (again["seed"], again["token_ids"]) == (drawn["seed"], drawn["token_ids"])
    assert "seed" not in generate(*arguments), "the likeliest tokens have none"
    told = tpiedge("run", *arguments, "--temperature", 1.5, "--seed", 5)
    assert "12 tokens (length, --seed 5)" in told.err.splitlines()[-1]


def test_text_for_people(tpiedge, generate, text_model):
    arguments = ("--model", text_model, "--raw", "--prompt", "ba be bi", "--max-tokens", 8, "--ignore-eos")
    ended = tpiedge("run", *arguments, "--threads", 1, "--nodes", 2)
    assert ended.status == 0, ended.err
    assert ended.out == generate(*arguments)["text"] + "\n"
    assert "8 tokens (length)" in ended.err.splitlines()[-1]


def _is_progress(line: str) -> bool:
    """Such lines are for what takes longer than a moment: beside other work that may be anything."""
    return line.startswith(("packing ", "loading weights: "))


def test_a_chat_through_a_pipe(tpiedge, generate, text_model):
    """Two turns: the second prompt holds the first question, its answer and the second question."""
    flags = ("--threads", 1, "--context", 128, "--max-tokens", 5, "--temperature", 0)
    ended = tpiedge(
        "run", "--model", text_model, *flags, "--nodes", 2, stdin="ba be\n\nbi bo\n/clear\nba be\n/exit\nbu\n"
    )
    assert ended.status == 0, ended.err
    assert [line for line in ended.err.splitlines() if not _is_progress(line)] == []
    first, second, cleared = ended.out.splitlines()
    once = generate("--model", text_model, "--raw", "--prompt", "ba be ", "--max-tokens", 5)
    assert f" {first}" == once["text"], (
        "a text that goes on begins with its space, an answer of a chat does not"
    )
    twice = generate("--model", text_model, "--raw", "--prompt", f"ba be {first} bi bo ", "--max-tokens", 5)
    assert f" {second}" == twice["text"]
    assert cleared == first


def test_a_chat_refuses_what_does_not_fit_and_goes_on(tpiedge, text_model):
    flags = ("--threads", 1, "--context", 8, "--max-tokens", 3)
    ended = tpiedge("run", "--model", text_model, *flags, stdin="ba " * 9 + "\nba be\n")
    assert ended.status == 0, ended.err
    assert "the conversation has 9 tokens, the context 8" in ended.err
    assert len(ended.out.splitlines()) == 1


def test_a_pack_whose_command_ended_before_its_texts_gets_them_at_its_next_use(tmp_path):
    """Without them it would have no tokenizer beside its weights, and no grammars."""
    pack = prepare("demo", None, None, tmp_path).pack.path
    texts = {path.name for path in (pack / "text").iterdir()}
    shutil.rmtree(pack / "text")
    (pack / "label.json").unlink()
    blobs = {path: path.stat().st_mtime_ns for path in (pack / "blobs").iterdir()}
    assert prepare("demo", None, None, tmp_path).pack.path == pack
    assert {path.name for path in (pack / "text").iterdir()} == texts
    assert {path: path.stat().st_mtime_ns for path in (pack / "blobs").iterdir()} == blobs
