"""`tpiedge run` with weights that stream from disk: the same tokens with less memory, and refusals that help."""

import re

import pytest

from tests.process.command import run_command

PROMPT = ("--model", "demo", "--prompt-ids", "5,6,7,8,9", "--max-tokens", 12, "--ignore-eos")
RESOURCE = 4


@pytest.fixture(scope="module")
def whole() -> dict:
    """The answers of 1 and 3 nodes with everything in memory."""
    return {}


@pytest.mark.parametrize(
    "flags",
    [
        ("--pin", "none"),
        ("--pin", "none", "--window", 1, "--io", "buffered"),
        ("--pin", "none", "--window", "3MB"),
        ("--nodes", 3, "--shares", "3,1,0:2", "--pin", "none"),
    ],
    ids=lambda flags: " ".join(map(str, flags)),
)
def test_weights_that_stream_give_the_same_tokens(generate, whole, flags):
    cluster = flags[:4] if "--nodes" in flags else ()
    if cluster not in whole:
        whole[cluster] = generate(*PROMPT, *cluster)
    kept, streamed = whole[cluster], generate(*PROMPT, *flags)
    assert streamed["token_ids"] == kept["token_ids"]
    for before, now in zip(kept["nodes"], streamed["nodes"], strict=True):
        assert now["weight_bytes"] < before["weight_bytes"]
        # Every sweep but the first reads again what is not kept.
        assert now["disk_read_bytes"] > 5 * before["weight_bytes"]
        assert now["weight_wait_s"] >= before["weight_wait_s"] == 0


def test_the_least_memory_that_a_refusal_names_is_enough(generate):
    ended = run_command("run", *PROMPT, "--memory", "64MB", "--threads", 1)
    assert ended.status == RESOURCE
    (line,) = ended.err.splitlines()
    least = re.search(
        r"node 0 needs at least ([\d.]+) MB \(weights .* KV cache .* program .*\) but may use", line
    )
    assert least, line
    record = generate(*PROMPT, "--memory", f"{least[1]}MB")
    assert len(record["token_ids"]) == 12
    assert record["plan"]["shares"][0]["predicted_bytes"] <= (float(least[1]) + 0.1) * 1e6


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (("--window", 0), 2, "0 blocks are out of range"),
        (("--window", "much"), 2, "not a size: 'much'"),
        (("--pin", "some"), 2, "'some' is not one of 'none', 'auto', 'all'"),
        (("--io", "fast"), 2, "'fast' is not one of 'direct', 'buffered'"),
        (("--pin", "all", "--memory", "346MB"), RESOURCE, "does not fit"),
    ],
)
def test_what_cannot_be_meant(flags, status, words):
    ended = run_command("run", *PROMPT, "--threads", 1, *flags)
    assert ended.status == status
    (line,) = ended.err.splitlines()
    assert words in line
