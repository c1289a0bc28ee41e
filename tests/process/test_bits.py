"""Real processes over encrypted links: one answer, however many of them compute it.

The logits of random weights are flat, so that any bit that changed would show in the tokens.
"""

import pytest

from tests.process.command import run_command

TOKENS = 24
PROMPT = ",".join(map(str, range(5, 45)))
DRAWN = {"greedy": ("--temperature", 0), "sampled": ("--temperature", 1, "--seed", 7)}


@pytest.fixture(scope="module")
def pack(request, _session_cache, tmp_path_factory):
    """The shape of 1.1 billion weights; its layers are two that take turns."""
    folder = tmp_path_factory.mktemp("random") / request.param
    flags = ("--random", "tinyllama", "--distinct-layers", 2, "--precision", request.param, "--out", folder)
    packed = run_command("pack", *flags)
    assert packed.status == 0, packed.err
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("pack", "drawn"), [("q4", "sampled"), ("q8", "greedy")], indirect=["pack"])
def test_one_to_four_nodes_give_one_answer(drawn, pack, generate):
    flags = ("--model", pack, "--prompt-ids", PROMPT, "--max-tokens", TOKENS, "--ignore-eos", "--logprobs", 3)
    found = [generate(*flags, *DRAWN[drawn], "--nodes", nodes) for nodes in (1, 2, 4)]
    assert len(set(found[0]["token_ids"])) > 3
    for other in found[1:]:
        assert other["token_ids"] == found[0]["token_ids"]
        assert other["logprobs"] == found[0]["logprobs"]  # JSON keeps a double exactly
