"""GGUF files and quantised checkpoints by the command: imported, run, refused."""

import json
import os
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open

from tests.process.gguf_of_checkpoint import write_gguf_of
from tests.unit.model.gguf_files import TinyGguf
from tests.unit.model.int4_files import Int4Checkpoint
from tpiedge.model.source import DEMO, resolve_model
from tpiedge.model.tokenizer import Tokenizer


def ids(found):
    return ",".join(map(str, found.prompt_ids))


def write_text_gguf_of(folder, path, kind):
    """A checkpoint of the demo's kind with its text; rows beyond the tokenizer are called as converters call them."""
    source = json.loads((folder / "tokenizer.json").read_bytes())
    special = {token["content"]: token["id"] for token in source["added_tokens"]}
    by_id = {number: token for token, number in (source["model"]["vocab"] | special).items()}
    rows = json.loads((folder / "config.json").read_bytes())["vocab_size"]
    tokens = [by_id.get(row, f"[PAD{row}]") for row in range(rows)]
    return write_gguf_of(
        folder,
        path,
        kind,
        ggml__model="gpt2",
        ggml__pre="gpt-2",
        ggml__tokens=tokens,
        ggml__token_type=[
            5 if row not in by_id else 3 if by_id[row] in special else 1 for row in range(rows)
        ],
        ggml__merges=[" ".join(merge) for merge in source["model"]["merges"]],
        ggml__bos_token_id=0,
        ggml__eos_token_id=1,
        ggml__eot_token_id=2,
        ggml__add_bos_token=True,
        chat_template=(folder / "chat_template.jinja").read_text(),
    )


def imported(tpiedge, *arguments):
    """The record of `import-gguf --json`, and what was said beside it."""
    ended = tpiedge("import-gguf", *arguments, "--json")
    assert ended.status == 0, ended.err
    (line,) = ended.out.splitlines()
    return json.loads(line), ended.err


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama-mqa-tied", "F16"),
        ("llama3-published-keys", "F32"),
        ("qwen2-tied", "BF16"),
    ],
)
def test_the_tokens_of_the_checkpoint(tpiedge, generate, references, tmp_path, name, kind):
    found = references(name)
    path = write_gguf_of(found.folder, tmp_path / "model.gguf", kind)
    record, _ = imported(tpiedge, path, "--out", tmp_path / "pack", "--verify")
    assert record["exact"]
    assert record["verified"]
    assert record["precision"]["layers"] == ("bf16" if kind == "BF16" else "f32")
    arguments = ("--prompt-ids", ids(found), "--max-tokens", 24, "--ignore-eos", "--nodes", 2)
    ran = generate("--model", tmp_path / "pack", *arguments)
    assert ran["token_ids"] == list(found.greedy_ids)


def test_transformers_reads_these_files_alike(references, tmp_path):
    """The files above are what others make: transformers gets the checkpoint's logits from one."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    found = references("llama-gqa-odd")
    path = write_gguf_of(found.folder, tmp_path / "model.gguf")
    config = AutoConfig.from_pretrained(found.folder)
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    model.load_state_dict(load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"])
    with torch.inference_mode():
        logits = model(torch.tensor([found.prompt_ids]), use_cache=False).logits[0].numpy()
    np.testing.assert_allclose(logits, found.logits_TV, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_quantised_weights_run_as_they_are(tpiedge, generate, tmp_path, kind):
    path = TinyGguf(kinds={"": kind}, layers=3).write(tmp_path / "tiny.gguf")
    record, err = imported(tpiedge, path)
    bits = "q4" if kind == "Q4_0" else "q8"
    assert record["precision"] == {"layers": bits, "embedding": bits, "head": bits}
    assert record["exact"]
    assert "the file has no tokenizer: the pack takes token ids only (--prompt-ids)" in err
    arguments = ("--prompt-ids", "5,6,7,8,9", "--max-tokens", 12, "--ignore-eos")
    ran = generate("--model", record["path"], *arguments)
    assert ran["precision"] == bits
    assert len(ran["token_ids"]) == 12
    assert imported(tpiedge, path)[0]["reused"]


@pytest.mark.thin
def test_a_text_model_with_its_tokenizer(tpiedge, generate, tmp_path):
    """The demo model as a file of eight bits: it still says what it says."""
    folder = resolve_model(DEMO)
    path = write_text_gguf_of(folder, tmp_path / "demo.gguf", "Q8_0")
    record, err = imported(tpiedge, path)
    assert record["notices"] == []
    assert "token ids only" not in err
    arguments = ("--raw", "--prompt", "The small boat", "--max-tokens", 24, "--temperature", 0)
    ran = generate("--model", record["path"], *arguments)
    of_eight_bits = generate("--model", "demo", "--precision", "q8", *arguments)
    assert ran["text"] == of_eight_bits["text"]
    own = Tokenizer.open(folder, here=True)
    assert ran["prompt_tokens"] == len(own.encode("The small boat"))


def test_a_padded_vocabulary_is_that_of_its_checkpoint(tpiedge, tmp_path):
    """The last two rows of the embedding have no token in the checkpoint."""
    folder = tmp_path / "model"
    shutil.copytree(resolve_model(DEMO), folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
    vocabulary = tokenizer["model"]["vocab"]
    last = sorted(vocabulary, key=vocabulary.__getitem__)[-2:]
    for token in last:
        del vocabulary[token]
    merges = tokenizer["model"]["merges"]
    tokenizer["model"]["merges"] = [merge for merge in merges if "".join(merge) not in last]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    record, _ = imported(tpiedge, write_text_gguf_of(folder, tmp_path / "m.gguf", "F32"))
    (tmp_path / "text").write_text("The small boat went out to sea.")
    ended = tpiedge(
        *("eval", "agreement", "--model", record["path"], "--reference-model", folder, "--precision", "f32"),
        *("--text", tmp_path / "text", "--threads", 1, "--json"),
    )
    assert ended.status == 0, ended.err
    assert json.loads(ended.out)["top1_agreement"] == 1.0


def test_other_types_are_rounded_with_a_notice(tpiedge, tmp_path):
    path = TinyGguf(kinds={"": "Q5_0"}, layers=1).write(tmp_path / "tiny.gguf")
    record, err = imported(tpiedge, path, "--out", tmp_path / "pack")
    assert record["precision"]["layers"] == "q8"
    assert not record["exact"]
    assert "tiny.gguf: 9 matrices of Q5_0 are rounded to q8" in err


@pytest.mark.parametrize(
    ("method", "options", "precision"), [("gptq", (), "q4"), ("awq", ("--precision", "f32"), "f32")]
)
def test_gptq_and_awq_checkpoints_run(generate, tmp_path, method, options, precision):
    Int4Checkpoint(method, symmetric=method == "gptq").write(tmp_path / "model")
    arguments = ("--prompt-ids", "5,6,7", "--max-tokens", 4, "--ignore-eos", *options)
    assert generate("--model", tmp_path / "model", *arguments)["precision"] == precision


def test_integers_that_a_pack_cannot_hold_are_told(tpiedge, tmp_path):
    Int4Checkpoint(act_order=True).write(tmp_path / "model")
    ended = tpiedge("pack", tmp_path / "model", "--out", tmp_path / "pack")
    assert ended.status == 0
    assert (
        "tpiedge: model: 7 matrices of GPTQ are rounded to q8, because act-order has put the inputs of a group apart\n"
        in ended.err
    )
    Int4Checkpoint().write(tmp_path / "in-order")
    assert "rounded" not in tpiedge("pack", tmp_path / "in-order", "--out", tmp_path / "exact").err


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "is not a GGUF file"), (b"GGUF" + bytes(100), "version 0 of GGUF"), (None, "No such file")],
)
def test_what_is_no_model_is_refused_in_one_line(tpiedge, tmp_path, data, message):
    path = tmp_path / "f.gguf"
    if data is not None:
        path.write_bytes(data)
    ended = tpiedge("import-gguf", path)
    assert ended.status == 2
    assert message in ended.err
    assert ended.err.startswith("tpiedge: ")
    assert ended.err.count("\n") == 1


def test_packing_a_file_names_the_verb_that_does_it(tpiedge, tmp_path):
    path = TinyGguf(layers=1).write(tmp_path / "tiny.gguf")
    ended = tpiedge("pack", path)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err == (
        f"tpiedge: {path} is a GGUF file: use tpiedge import-gguf {path} first, then give the pack that it writes; run "
        "and master take the file itself\n"
    )


def test_a_file_runs_as_a_model(tpiedge, generate, tmp_path):
    """The first time it is imported into the cache; afterwards its pack is there, by file and by name."""
    path = write_text_gguf_of(resolve_model(DEMO), tmp_path / "Small-boat.Q5_0.gguf", "Q5_0")
    flags = (
        "--raw",
        "--prompt",
        "The small boat",
        "--max-tokens",
        12,
        "--threads",
        1,
        "--cache",
        tmp_path / "c",
    )
    first = tpiedge("run", "--model", path, *flags)
    assert first.status == 0, first.err
    assert "packing Small-boat.Q5_0.gguf as q8" in first.err
    assert "of Q5_0 are rounded to q8" in first.err
    again = tpiedge("run", "--model", path, *flags)
    assert "packing" not in again.err
    assert "rounded" not in again.err
    named = tpiedge("run", "--model", "small-boat-Q8", *flags)  # whatever the case
    assert first.out == again.out == named.out
    (pack,) = json.loads(tpiedge("ls", "--json", "--cache", tmp_path / "c").out)["packs"]
    assert (pack["name"], pack["source"], pack["precision"]) == ("Small-boat-q8", str(path), "q8")


def test_a_name_that_is_not_utf8(tpiedge, generate, tmp_path):
    path = tmp_path / os.fsdecode(b"mod\xffel.gguf")
    TinyGguf("llama").write(path)
    ended = tpiedge("run", path, "--prompt-ids", "1,2", "--max-tokens", 2, "--cache", tmp_path / "cache")
    assert ended.status == 0, ended.err
    assert len(ended.out.split(",")) == 2


def test_rounding_says_what_it_cost(tpiedge, tmp_path):
    path = TinyGguf(kinds={"": "Q5_0"}, layers=1).write(tmp_path / "tiny.gguf")
    record, err = imported(tpiedge, path, "--out", tmp_path / "pack")
    assert re.search(r"tiny\.gguf: rounding changes the weights by \d+(\.\d+)? % \(\d+ dB\)", err)
    assert re.search(r"became .+; --precision f32 would lose nothing and take .+", err)
    assert len(record["notices"]) == 4  # what, how much, the size, and that there is no tokenizer
    whole, err = imported(tpiedge, path, "--out", tmp_path / "whole", "--precision", "f32")
    assert whole["exact"]
    assert "rounding" not in err


def test_norms_that_bf16_has_not_stay_as_they_are(tpiedge, generate, tmp_path):
    path = TinyGguf(kinds={"": "BF16"}, layers=1).write(tmp_path / "tiny.gguf")
    record, _ = imported(tpiedge, path)
    assert record["precision"]["layers"] == "bf16"
    assert record["exact"]
    assert "bf16-vectors-f32" in record["path"]
    wide, _ = imported(tpiedge, path, "--precision", "f32")
    flags = ("--prompt-ids", "5,6,7", "--max-tokens", 8, "--ignore-eos", "--nodes", 2, "--logprobs", 3)
    ran, expected = (generate("--model", one["path"], *flags, "--precision", "f32") for one in (record, wide))
    assert ran["token_ids"] == expected["token_ids"]
    assert ran["logprobs"] == expected["logprobs"]


def test_a_file_that_ends_early_leaves_nothing(tpiedge, tmp_path):
    path = TinyGguf(layers=1).write(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-4000])
    ended = tpiedge("import-gguf", path, "--out", tmp_path / "pack")
    assert ended.status == 2
    assert "ends at byte" in ended.err
    assert not (tmp_path / "pack").exists()


def test_what_is_unpacked_of_a_quantised_checkpoint_is_a_plain_one(tpiedge, tmp_path):
    numbers = Int4Checkpoint("awq").write(tmp_path / "model")
    assert tpiedge("pack", tmp_path / "model", "--out", tmp_path / "pack").status == 0
    assert tpiedge("unpack", tmp_path / "pack", tmp_path / "back").status == 0
    assert "quantization_config" not in json.loads((tmp_path / "back" / "config.json").read_text())
    with safe_open(tmp_path / "back" / "model.safetensors", "pt") as file:
        name = "model.layers.0.mlp.down_proj.weight"
        np.testing.assert_array_equal(file.get_tensor(name).numpy(), numbers[name])
