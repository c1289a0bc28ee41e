"""q8 and q4 by the command: from the bundled checkpoint to text, on one node and several, pinned and streamed."""

import json
import re

import pytest

from tests.process.command import run_command

USER, RESOURCE = 2, 4
PROMPT = "Once upon a time there was a little fox"
TOKENS = 40


@pytest.fixture(scope="module")
def words(_session_cache) -> set[str]:
    """That the model knows: of a long answer without quantisation, with a temperature."""
    flags = ("--max-tokens", 300, "--ignore-eos", "--temperature", 1, "--seed", 1, "--json")
    ended = run_command("run", "--model", "demo", "--raw", "--prompt", PROMPT, *flags)
    assert ended.status == 0, ended.err
    return set(re.findall("[a-z]+", json.loads(ended.out)["text"].lower()))


@pytest.mark.parametrize("precision", ["q4"])
def test_two_nodes_tell_a_story_and_tell_it_again(precision, generate, words):
    flags = ("--model", "demo", "--precision", precision, "--raw", "--prompt", PROMPT, "--max-tokens", TOKENS)
    first, again = (generate(*flags, "--nodes", 2, "--temperature", 0, "--logprobs", 3) for _ in range(2))
    assert first["precision"] == precision
    assert first["plan"]["compute"] == "int8"
    assert first["token_ids"] == again["token_ids"]
    assert first["logprobs"] == again["logprobs"]  # JSON keeps a double exactly
    said = re.findall("[a-z]+", first["text"].lower())
    assert len(said) > 12
    assert sum(word in words for word in said) > 0.6 * len(said)


def test_a_pack_says_how_it_is_computed_with(tpiedge, generate, tmp_path):
    packed = tpiedge("pack", "demo", "--precision", "q4", "--out", tmp_path / "pack")
    assert packed.status == 0, packed.err
    flags = ("--raw", "--prompt", PROMPT, "--max-tokens", 12, "--temperature", 0)
    found = generate("--model", tmp_path / "pack", *flags)
    assert (found["precision"], found["plan"]["compute"]) == ("q4", "int8")
    assert found["token_ids"] == generate("--model", "demo", "--precision", "q4", *flags)["token_ids"]
    for precision in ("f32", "bf16", "q8"):
        ended = tpiedge("run", "--model", tmp_path / "pack", *flags, "--precision", precision)
        assert ended.status == USER
        assert f"is stored in q4: give what it was made from with --precision {precision}" in ended.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--precision", "q4", "--compute", "f32"), "--compute f32 does not go with weights in q4"),
        (("--precision", "q8", "--compute", "bf16"), "--compute bf16 does not go with weights in q8"),
        (("--compute", "int8"), "--compute int8 does not go with weights in bf16"),
        (("--precision", "f32", "--compute", "int8"), "--compute int8 does not go with weights in f32"),
    ],
)
def test_an_arithmetic_that_does_not_go_with_the_weights(flags, words, tpiedge):
    ended = tpiedge("run", "--model", "demo", "--raw", "--prompt", PROMPT, *flags)
    assert ended.status == USER
    assert len(ended.err.splitlines()) == 1
    assert words in ended.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--precision", "q4"), ("weights in q4 need native kernels", "or choose --precision bf16")),
        (
            ("--kv-precision", "q8"),
            ("keys and values in q8 need native kernels", "or choose --kv-precision bf16"),
        ),
    ],
)
@pytest.mark.parametrize("verb", ["run", "master"])
def test_without_native_kernels_what_is_quantised_is_refused(verb, flags, words, tmp_path):
    """Before anything is packed, and before a master listens."""
    folders = ("--cache", tmp_path / "cache")
    given = ("--prompt", PROMPT) if verb == "run" else ("--state", tmp_path / "state")
    ended = run_command(verb, "--model", "demo", *flags, *given, *folders, TPIEDGE_NATIVE="0")
    assert ended.status == USER
    (line,) = ended.err.splitlines()
    assert "which are switched off (TPIEDGE_NATIVE=0): unset it" in line
    assert all(part in line for part in words)
    assert not ended.out
    assert not list(tmp_path.glob("cache/**/manifest.json"))


@pytest.mark.thin
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_without_native_kernels_other_weights_give_the_same_answer(precision):
    flags = ("--precision", precision, "--raw", "--prompt", PROMPT, "--max-tokens", 24, "--temperature", 0)
    command = ("run", "--model", "demo", *flags, "--nodes", 2, "--json")
    native, without = run_command(*command), run_command(*command, TPIEDGE_NATIVE="0")
    assert (native.status, without.status) == (0, 0), without.err
    assert json.loads(native.out)["token_ids"] == json.loads(without.out)["token_ids"]


def test_weights_in_q4_stream_within_the_least_memory(generate, tpiedge):
    flags = (
        "--model",
        "demo",
        "--precision",
        "q4",
        "--prompt",
        PROMPT,
        "--max-tokens",
        24,
        "--temperature",
        0,
    )
    refused = tpiedge("run", *flags, "--memory", "64MB", "--threads", 1)
    assert refused.status == RESOURCE
    least = float(re.search(r"needs at least ([\d.]+) MB", refused.err)[1])
    pinned = generate(*flags)
    streamed = generate(*flags, "--memory", f"{least:.1f}MB", "--pin", "none")
    (node,), (share,) = streamed["nodes"], streamed["plan"]["shares"]
    assert streamed["token_ids"] == pinned["token_ids"]
    assert node["disk_read_bytes"] > 10 * node["weight_bytes"]
    assert node["weight_bytes"] < pinned["nodes"][0]["weight_bytes"]
    assert node["peak_rss_bytes"] <= share["predicted_bytes"] <= least * 1e6


def test_bench_decode(tpiedge):
    flags = ("--settings", "1x1", "--prompt-tokens", 4, "--tokens", 4, "--repeats", 1, "--json")
    ended = tpiedge("bench", "decode", "--model", "demo", "--precision", "q4", *flags)
    assert ended.status == 0, ended.err
    record = json.loads(ended.out)
    assert (record["precision"], record["compute"]) == ("q4", "int8")


@pytest.mark.thin
def test_the_demo(tpiedge):
    ended = tpiedge("demo", "--precision", "q4", "--max-tokens", 8)
    assert ended.status == 0, ended.err
    assert "Once upon a time" in ended.out
