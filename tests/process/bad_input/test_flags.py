import pytest

from tests.process.bad_input.refusal import run_model


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--nodes", 3, "--shares", "1,1"), "2 weights for 3 nodes"),
        (("--nodes", 2, "--shares", "0,0"), "to nobody"),
        (("--nodes", 2, "--shares", "1,much"), "'much' is not a weight"),
        (("--nodes", 0), "--nodes 0 is out of range"),
        (("--nodes", "two"), "'two' is not a whole number"),
        (("--precision", "q9"), "'q9' is not one of 'keep', 'f32', 'bf16'"),
        (("--memory", "lots"), "not a size: 'lots'"),
        (("--memory", "10MB"), "10MB is less than any node can work with: give 64MB or more"),
        (("--memory", 512), "512 has no unit: did you mean 512MB?"),
        (("--memory", 4_000_000_000), "4000000000 has no unit: did you mean 4.0GB?"),
        (("--temperature", 9), "--temperature is 9.0: give a number from 0.0 to 2.0"),
        (("--window", "9" * 5000), "99999999999999999999 blocks are out of range: 1 to 10000"),
        (("--max-tokens", 0), "--max-tokens 0 is out of range"),
        (("--top-p", 2), "--top-p is 2.0"),
        (("--seed", -1), "--seed is -1"),
        (("--logprobs", 21, "--json"), "--logprobs is 21"),
        (("--logprobs", 5), "need --json"),
        (("--logit-bias", "x"), "'x' is not a token id and a bias"),
        (("--speculate", 16), "'16' is none of 'auto', 'off' or a number from 1 to 15"),
        (("--colour", "red"), "No such option"),
    ],
    ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, tuple) else "",
)
def test_invalid_flags_are_refused(fails, cache, references, flags, expected):
    assert expected in fails(*run_model(references("openllama").folder), *flags)
    assert not cache.exists()


def test_invalid_prompts_are_refused(fails, references, text_model):
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
    assert "the prompt is empty" in fails("run", text_model, "")
    assert "no tokenizer.json" in fails(*run, "--prompt", "ba")
    assert "--json needs --prompt or --prompt-ids" in fails(*run, "--json")
    assert "--context 0 is out of range" in fails("run", "--model", text_model, "--context", 0)
