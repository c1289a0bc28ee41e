"""q8 and q4 by the command: without native kernels."""

import json

import pytest

from tests.process.command import run_command

USER = 2
PROMPT = "Once upon a time there was a little fox"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--precision", "q4"), ("weights in q4 need native kernels", "or choose --precision bf16")),
        (("--kv-precision", "q8"), ("keys and values in q8 need native", "or choose --kv-precision bf16")),
    ],
)
def test_quantisation_is_refused_without_native_kernels(flags, words, tmp_path):
    """The refusal comes before anything is packed, and before a master listens."""
    folders = ("--cache", tmp_path / "cache", "--state", tmp_path / "state")
    ended = run_command("master", "--model", "demo", *flags, *folders, TPIEDGE_NATIVE="0")
    assert ended.status == USER
    (line,) = ended.err.splitlines()
    assert "which are switched off (TPIEDGE_NATIVE=0): unset it" in line
    assert all(part in line for part in words)
    assert not ended.out
    assert not list(tmp_path.glob("cache/**/manifest.json"))


@pytest.mark.thin
@pytest.mark.parametrize("arithmetic", [("bf16",), ("q4", "--compute", "f32")])
def test_f32_answer_is_the_same_without_native_kernels(arithmetic, generate):
    flags = (*arithmetic, "--raw", "--prompt", PROMPT, "--max-tokens", 8, "--temperature", 0)
    command = ("--model", "demo", "--nodes", 2, "--precision", *flags)
    expected = generate(*command)["token_ids"]
    without = run_command("run", *command, "--threads", 1, "--json", TPIEDGE_NATIVE="0")
    assert without.status == 0, without.err
    assert json.loads(without.out)["token_ids"] == expected
