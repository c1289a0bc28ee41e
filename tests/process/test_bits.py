"""Real processes over encrypted links: one answer, however many of them compute it.

The values beside the tokens have all bits, so that any that changed would show.
"""

import pytest


@pytest.mark.slow
def test_one_and_three_nodes_give_one_answer(generate) -> None:
    prompt = ("--prompt-ids", ",".join(map(str, range(5, 45))), "--max-tokens", 12, "--ignore-eos")
    sampled = ["--precision", "q4", "--logprobs", "3", "--temperature", "1", "--seed", "7"]
    flags = ("--model", "demo", *prompt, *sampled)
    one, three = (generate(*flags, "--nodes", nodes) for nodes in (1, 3))
    assert len(set(one["token_ids"])) > 3
    assert three["token_ids"] == one["token_ids"]
    assert three["logprobs"] == one["logprobs"]  # JSON keeps a double exactly
