"""Real processes over encrypted links give the tokens and the logits of transformers on one machine.

G generated tokens, V vocabulary, T prompt positions.
"""

import numpy as np
import pytest

TOP = 5
KEYS = {
    "model", "precision", "prompt_tokens", "token_ids", "text", "finish_reason", "ttft_s", "s_per_token",
    "tokens_per_step", "nodes", "plan", "master_peak_rss_bytes", "logprobs", "prompt_logprobs",
}  # fmt: skip
NODE_KEYS = {
    "rank", "attention_units", "ffn_units", "threads", "peak_rss_bytes", "weight_bytes", "disk_read_bytes",
    "compute_s", "attention_s", "ffn_s", "reduce_wait_s", "weight_wait_s", "load_s", "head_s", "bytes_sent",
    "disk_reads", "prefetch_hits", "stalls", "messages_dropped", "messages_refused",
}  # fmt: skip


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def assert_close(actual, expected, scale):
    """1e-4, relative to the largest logit of the row: how far the two best are apart does not depend on less."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4 * float(np.abs(scale).max()))


@pytest.mark.thin
def test_a_cluster_answers_as_transformers(references, generate):
    """tests/cluster/test_exactness.py has every family, every kind of rope and other cuts, in threads."""
    found, nodes = references("llama-gqa-odd"), 3
    record = generate(
        "--model", found.folder, "--nodes", nodes, "--shares", "3,1,2",
        "--prompt-ids", ",".join(map(str, found.prompt_ids)), "--max-tokens", len(found.greedy_ids),
        "--ignore-eos", "--precision", "f32", "--logprobs", TOP, "--prompt-logprobs",
    )  # fmt: skip
    assert record["token_ids"] == list(found.greedy_ids)
    assert record["finish_reason"] == "length"
    assert_logprobs(record["logprobs"], found.greedy_logits_GV)
    assert_prompt_logprobs(record["prompt_logprobs"], found)
    assert_covered(record, nodes, "attention_units", found.case.config["num_attention_heads"])
    assert_covered(record, nodes, "ffn_units", -(-found.case.config["intermediate_size"] // 128))
    assert_documented(record, found)


def test_a_cluster_answers_with_experts_as_transformers(references, generate):
    found, nodes = references("olmoe"), 2
    record = generate(
        "--model", found.folder, "--nodes", nodes, "--shares", "1,0:2", "--precision", "f32", "--ignore-eos",
        "--prompt-ids", ",".join(map(str, found.prompt_ids)), "--max-tokens", len(found.greedy_ids),
    )  # fmt: skip
    assert record["token_ids"] == list(found.greedy_ids)
    assert_covered(record, nodes, "ffn_units", -(-found.case.config["intermediate_size"] // 64))


def assert_logprobs(logprobs, logits_GV):
    expected_GV = log_softmax(logits_GV)
    assert len(logprobs) == len(expected_GV)
    for step, (pairs, expected_V) in enumerate(zip(logprobs, expected_GV, strict=True)):
        ids, values = [token for token, _ in pairs], np.array([value for _, value in pairs])
        best = np.sort(expected_V)[::-1][:TOP]
        assert len(set(ids)) == TOP
        assert_close(values, best, logits_GV[step])  # the five best values, best first ...
        assert_close(expected_V[ids], values, logits_GV[step])  # ... under the right ids


def assert_prompt_logprobs(scores, found):
    """Compares every prompt token after the first."""
    following = list(found.prompt_ids[1:])
    expected_T = log_softmax(found.logits_TV[:-1])[np.arange(len(following)), following]
    assert_close(scores, expected_T, found.logits_TV)


def assert_covered(record, nodes, units, total):
    assert [node["rank"] for node in record["nodes"]] == list(range(nodes))
    at = 0
    for node in record["nodes"]:
        start, stop = node[units]
        assert start in (at, stop)
        at = max(at, stop)
    assert at == total


def assert_documented(record, found):
    assert set(record) == KEYS
    assert [set(node) for node in record["nodes"]] == [NODE_KEYS] * len(record["nodes"])
    assert record["prompt_tokens"] == len(found.prompt_ids)
    assert record["precision"] == "bf16"  # which has all bits of this checkpoint
    assert record["plan"]["shares"][0]["attention"] == record["nodes"][0]["attention_units"]
    # Generation alone reads rank 0's embedding rows and nothing else: of the last token none.
    rows, row_bytes = len(found.prompt_ids) + len(found.greedy_ids) - 1, 2 * found.case.config["hidden_size"]
    assert record["nodes"][0]["disk_read_bytes"] in range(rows * row_bytes, rows * 8192)
    for node in record["nodes"]:
        assert node["disk_read_bytes"] == 0 or node["rank"] == 0
        assert 50 << 20 < node["peak_rss_bytes"] < 400 << 20
        assert node["weight_bytes"] > 0
        assert 0 < node["compute_s"] < 10
        assert node["weight_wait_s"] == 0
        assert node["threads"] == 1
