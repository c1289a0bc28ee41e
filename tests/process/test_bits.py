"""Real processes over encrypted links: one answer, however many of them compute it.

The logits of random weights are flat, so that any bit that changed would show in the tokens.
"""

from pathlib import Path

import pytest

from tests.process.command import run_command


@pytest.mark.slow
def test_one_and_three_nodes_give_one_answer(tmp_path: Path, generate) -> None:
    """The shape of half a billion weights; its layers are one again and again."""
    random = ("--random", "qwen2.5-0.5b", "--distinct-layers", 1, "--precision", "q4")
    packed = run_command("pack", *random, "--out", tmp_path / "pack")
    assert packed.status == 0, packed.err
    prompt = ("--prompt-ids", ",".join(map(str, range(5, 45))), "--max-tokens", 12, "--ignore-eos")
    flags = ("--model", tmp_path / "pack", *prompt, "--logprobs", 3, "--temperature", 1, "--seed", 7)
    one, three = (generate(*flags, "--nodes", nodes) for nodes in (1, 3))
    assert len(set(one["token_ids"])) > 3
    assert three["token_ids"] == one["token_ids"]
    assert three["logprobs"] == one["logprobs"]  # JSON keeps a double exactly
