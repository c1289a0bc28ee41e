"""`tpiedge run` with weights that stream from disk: the same tokens with less memory, and refusals that help."""

import pytest

PROMPT = ("--model", "demo", "--prompt-ids", "5,6,7,8,9", "--max-tokens", 8, "--ignore-eos")


@pytest.mark.fault("P15", "what memory does not hold streams from disk")
def test_weights_that_stream_give_the_same_tokens(generate):
    cluster = ("--nodes", 3, "--shares", "3,1,0:2")
    kept = generate(*PROMPT, *cluster)
    streamed = generate(*PROMPT, *cluster, "--pin", "none", "--window", 1, "--io", "buffered")
    assert streamed["token_ids"] == kept["token_ids"]
    for before, now in zip(kept["nodes"], streamed["nodes"], strict=True):
        assert now["weight_bytes"] < before["weight_bytes"]
        # Every sweep but the first reads again what is not kept.
        assert now["disk_read_bytes"] > 5 * before["weight_bytes"]
        assert now["weight_wait_s"] >= before["weight_wait_s"] == 0
