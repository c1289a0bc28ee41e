"""Flags that cannot be meant."""

import pytest

from tests.process.bad_input.refusal import RESOURCE, run_model


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--nodes", 3, "--shares", "1,1"), "2 weights for 3 nodes"),
        (("--nodes", 2, "--shares", "1,-1"), "'-1' is out of range"),
        (("--nodes", 2, "--shares", "0,0"), "to nobody"),
        (("--nodes", 2, "--shares", "0:1,0:1"), "leaves the attention to nobody"),
        (("--nodes", 2, "--shares", "1:0,1:0"), "leaves the FFN to nobody"),
        (("--nodes", 2, "--shares", "1,much"), "'much' is not a weight"),
        (("--nodes", 2, "--shares", "1,nan"), "'nan' is out of range"),
        (("--nodes", 2, "--shares", "1,1:2:3"), "'1:2:3' is not a weight"),
        (("--nodes", 1, "--shares", ""), "'' is not a weight"),
        (("--nodes", 0), "--nodes 0 is out of range"),
        (("--nodes", -1), "--nodes -1 is out of range"),
        (("--nodes", 65), "--nodes 65 is out of range"),
        (("--nodes", "two"), "'two' is not a whole number"),
        (("--threads", 0), "--threads 0 is out of range"),
        (("--precision", "q9"), "'q9' is not one of 'f32', 'bf16'"),
        (("--compute", "int3"), "'int3' is not one of"),
        (("--memory", "lots"), "not a size: 'lots'"),
        (("--memory", 10), "10 has no unit: did you mean 10GB?"),
        (("--memory", 4_000_000_000), "4000000000 has no unit: did you mean 4.0GB?"),
        (("--memory", 0), "0 has no unit: write it like 4GB"),
        (("--memory", "10MB"), "10MB is less than any node can work with: give 64MB or more"),
        (("--memory", "50MB"), "50MB is less than any node can work with: give 64MB or more"),
        (("--memory", 512), "512 has no unit: did you mean 512MB?"),
        (("--memory", 4096), "4096 has no unit: did you mean 4096MB?"),
        (("--memory", 1_500_000), "1500000 has no unit: write it like 4GB"),
        (("--temperature", 9), "--temperature is 9.0: give a number from 0.0 to 2.0"),
        (("--window", "9" * 5000), "99999999999999999999... blocks are out of range: 1 to 10000"),
        (("--window", "9" * 5000 + "MB"), "not a size that a computer can have"),
        (("--window", "-1"), "not a size: '-1'"),
        (("--max-tokens", 0), "--max-tokens 0 is out of range"),
        (("--temperature", -1), "--temperature is -1.0"),
        (("--temperature", "nan"), "--temperature is nan"),
        (("--top-p", 2), "--top-p is 2.0"),
        (("--top-k", -1), "--top-k is -1"),
        (("--seed", -1), "--seed is -1"),
        (("--logprobs", 21, "--json"), "--logprobs is 21"),
        (("--logprobs", 5), "need --json"),
        (("--logit-bias", "x"), "'x' is not a token id and a bias"),
        (("--stop", "x"), "--stop needs a tokenizer"),
        (("--context", 0), "--context 0 is out of range"),
        (("--context", 10**9), "--context 1000000000 is out of range"),
        (("--speculate", 16), "'16' is none of 'auto', 'off' or a number from 1 to 15"),
        (("--speculate", "maybe"), "'maybe' is none of 'auto', 'off'"),
        (("--colour", "red"), "No such option"),
    ],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, tuple) else "",
)
def test_impossible_flags(fails, references, flags, expected):
    assert expected in fails(*run_model(references("openllama").folder), *flags)


@pytest.mark.parametrize(
    "flags",
    [
        ("--nodes", 0),
        ("--nodes", 2, "--shares", "1"),
        ("--shares", "x"),
        ("--threads", -1),
        ("--temperature", -1),
        ("--prompt-ids", "x"),
    ],
    ids=lambda flags: " ".join(map(str, flags)),
)
def test_what_can_be_refused_at_once_is_not_refused_after_packing(fails, cache, references, flags):
    """Packing a large model takes many minutes."""
    fails(*run_model(references("openllama").folder), *flags)
    assert not cache.exists()


def test_prompts(fails, references, text_model):
    folder, vocabulary = references("openllama").folder, 517
    run = ("run", "--model", folder)
    assert "either --prompt or --prompt-ids, not both" in fails(*run, "--prompt", "a", "--prompt-ids", "1")
    assert f"token id {vocabulary} is outside the vocabulary of 517" in fails(
        *run, "--prompt-ids", f"1,{vocabulary}"
    )
    assert "cannot be a token id" in fails(*run, "--prompt-ids", "1,-1")
    assert "cannot be a token id" in fails(*run, "--prompt-ids", 1 << 40)
    assert "is not a list of token ids" in fails(*run, "--prompt-ids", "1,,2")
    assert "is not a list of token ids" in fails(*run, "--prompt-ids", "")
    assert "the prompt has 128 tokens, the context 128" in fails(*run, "--prompt-ids", ",".join(["1"] * 128))
    small = ("--context", 4, "--prompt-ids", "1,2,3,4")
    assert "the prompt has 4 tokens, the context 4" in fails(*run, *small)
    assert "the prompt is empty" in fails("run", "--model", text_model, "--prompt", "")
    assert "no tokenizer.json" in fails(*run, "--prompt", "ba")
    assert "--json needs --prompt or --prompt-ids" in fails(*run, "--json")
    assert "--context 0 is out of range" in fails("run", "--model", text_model, "--context", 0)


def test_bf16_arithmetic_with_f32_weights(fails, references):
    folder = references("openllama").folder
    for flags in ((), ("--precision", "f32")):
        assert "add --precision bf16" in fails(*run_model(folder), "--compute", "bf16", *flags)


def test_too_little_memory_is_told_in_numbers(fails, references):
    line = fails(
        *run_model(references("openllama").folder), "--nodes", 2, "--memory", "64MB", status=RESOURCE
    )
    assert "does not fit" in line
    assert sum(character.isdigit() for character in line) >= 4


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "give either a MODEL or --random PRESET"),
        (("demo", "--random", "tinyllama"), "give either a MODEL or --random PRESET"),
        (("--random", "llama9"), "no preset 'llama9'"),
        (("--random", "tinyllama", "--distinct-layers", 0), "--distinct-layers 0"),
        (("--random", "tinyllama", "--distinct-layers", 23), "the model has 22 layers"),
        (("--random", "tinyllama", "--seed", -1), "--seed -1 is out of range"),
        (("--random", "tinyllama", "--precision", "q5"), "'q5' is not one of"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_pack_flags(fails, cache, arguments, expected):
    assert expected in fails("pack", *arguments)
