"""Long prompts in real processes: bounded activations, and a KV cache that takes its memory from pinned weights."""

import functools
import json
import re

import pytest

from tests.process.command import run_command
from tests.process.lab.refused import refusal
from tests.process.models import build_text_model

HIDDEN, WIDTH, LAYERS, CONTEXT = 256, 4400, 3, 2600
POSITION_BYTES = LAYERS * 2 * 2 * 64 * 4  # keys and values of two heads, in f32
KV_BYTES = CONTEXT * POSITION_BYTES
LONG = 2000
RESOURCE = 4

#: What a step may take beside weights and KV cache: hidden states, messages, FFN, attention. Gate and up of a whole
#: message would take 67 MiB.
ACTIVATION_BYTES = 32 << 20
#: With it glibc gives every larger block back once it is freed. Left alone it raises the bound with what it sees, and
#: keeps 5 to 26 MB more, by when which thread freed what.
FREED_BYTES = str(128 << 10)


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory):
    """An FFN so wide that a message's worth of its activations would be noticed."""
    return build_text_model(
        tmp_path_factory.mktemp("wide") / "wide",
        hidden_size=HIDDEN,
        intermediate_size=WIDTH,
        num_hidden_layers=LAYERS,
    )


def prompt(model, length, max_tokens):
    ids = ",".join(str(5 + place * place % 90) for place in range(length))
    return ("--model", model, "--prompt-ids", ids, "--max-tokens", max_tokens, "--ignore-eos", "--threads", 1)


@pytest.fixture(scope="module")
def whole(wide_model):
    @functools.cache
    def run(length):
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("MALLOC_MMAP_THRESHOLD_", FREED_BYTES)
            return answered(*prompt(wide_model, length, 1))

    return run


@pytest.fixture(scope="module")
def budget(wide_model):
    """A little more than the least memory that a refusal names, in MB, for a context of which little is used."""
    status, words = refusal("run", *prompt(wide_model, 16, CONTEXT - 16), "--memory", "64MB")
    assert status == RESOURCE
    least = re.search(r"node 0 needs at least ([\d.]+) MB .* KV cache ([\d.]+) MB", words)
    assert least, words
    assert float(least[2]) == pytest.approx(KV_BYTES / 1e6, rel=0.03)
    return float(least[1]) + 10


@pytest.fixture(scope="module")
def tight(wide_model, whole, budget):
    """The same with that memory: the answer is allowed to fill the context, and ends at its first word."""

    @functools.cache
    def run(length):
        stop = whole(length)["text"].strip()
        allowed = prompt(wide_model, length, CONTEXT - length)
        return answered(*allowed, "--stop", stop, "--memory", f"{budget:.1f}MB")

    return run


def answered(*arguments):
    ended = run_command("run", *arguments, "--json")
    assert ended.status == 0, ended.err
    return json.loads(ended.out)


def test_a_long_prompt_stays_within_the_activation_budget(whole):
    short, long = (whole(length)["nodes"][0]["peak_rss_bytes"] for length in (16, LONG))
    assert long - short < LONG * POSITION_BYTES + ACTIVATION_BYTES


def test_tight_memory_budget_gives_the_same_answer(whole, tight, budget):
    assert tight(LONG)["token_ids"] == whole(LONG)["token_ids"]
    assert tight(LONG)["nodes"][0]["peak_rss_bytes"] < budget * 1e6


def test_growing_kv_cache_displaces_pinned_weights(tight):
    """Most of a context leaves no room for one more of the large matrices."""
    short, long = (tight(length)["nodes"][0]["weight_bytes"] for length in (16, LONG))
    planned = tight(16)["plan"]["shares"][0]["weight_bytes"]  # for a full cache
    assert planned < long < short < planned + KV_BYTES
