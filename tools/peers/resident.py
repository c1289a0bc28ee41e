"""transformers against one node of tpiedge: both hold the same weights at the same time and answer in alternation."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tpiedge.lab.bench.figures import spread
from tpiedge.local.cluster import Answer, LocalCluster, collect, launch
from tpiedge.local.layout import Layout, plan_cluster
from tpiedge.local.prepare import prepare
from tpiedge.wire.requests import GenerationRequest

from .spread import prompt_ids

Measure = Callable[[Sequence[int], int], tuple[float, float]]
"""(prompt ids, new tokens) -> (seconds to the first token, seconds per further token)."""


def compare_transformers(arguments: argparse.Namespace) -> dict[str, object]:
    """The record of one comparison, as the verb's flags ask for it."""
    compute = arguments.compute or arguments.precision
    model = prepare(str(arguments.checkpoint), arguments.precision, compute, arguments.cache)
    layout = Layout(1, None, arguments.threads, None)
    capacity = arguments.prompt_tokens + arguments.tokens
    torch.set_num_threads(arguments.threads)
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    peer = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=dtype).eval()
    plan = plan_cluster(model, layout, capacity)
    with launch(model, layout, plan, capacity) as cluster:
        contestants = {"transformers": _of_transformers(peer), "tpiedge": _of_cluster(cluster)}
        samples = _alternate(contestants, arguments)
    return {
        "checkpoint": arguments.checkpoint.name,
        "precision": arguments.precision,
        "compute": compute,
        "threads": arguments.threads,
        "prompt_tokens": arguments.prompt_tokens,
        "repeats": arguments.repeats,
        **_report(samples),
    }


def _of_transformers(model: PreTrainedModel) -> Measure:
    @torch.inference_mode()
    def measure(prompt: Sequence[int], tokens: int) -> tuple[float, float]:
        started = time.perf_counter()
        out = model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
        token = out.logits[0, -1].argmax()
        first_s = time.perf_counter() - started
        for _ in range(tokens - 1):
            out = model(token.view(1, 1), past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[0, -1].argmax()
        token.item()
        return first_s, (time.perf_counter() - started - first_s) / (tokens - 1)

    return measure


def _of_cluster(cluster: LocalCluster) -> Measure:
    def measure(prompt: Sequence[int], tokens: int) -> tuple[float, float]:
        request = GenerationRequest("peer", tuple(prompt), tokens, ignore_eos=True)
        answer: Answer = collect(cluster, request, None, (), lambda _text: None)
        return answer.ttft_s, answer.s_per_token or 0.0

    return measure


def _alternate(
    contestants: dict[str, Measure], arguments: argparse.Namespace
) -> dict[str, list[tuple[float, float]]]:
    prompt = prompt_ids(arguments.prompt_tokens)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for repeat in range(-1, arguments.repeats):
        for name, measure in contestants.items():
            sample = measure(prompt, arguments.tokens)
            print(f"{name}: first {sample[0]:.3f} s, then {sample[1] * 1e3:.1f} ms/token", file=sys.stderr)
            if repeat >= 0:  # the first round warms both up
                samples[name].append(sample)
    return samples


def _report(samples: dict[str, list[tuple[float, float]]]) -> dict[str, object]:
    peer, own = samples["transformers"], samples["tpiedge"]
    return {
        "decode_s_per_token": {name: spread([s for _, s in pairs]) for name, pairs in samples.items()},
        "prefill_s": {name: spread([s for s, _ in pairs]) for name, pairs in samples.items()},
        "decode_speed_ratio": spread([p / o for (_, p), (_, o) in zip(peer, own, strict=True)]),
        "prefill_speed_ratio": spread([p / o for (p, _), (o, _) in zip(peer, own, strict=True)]),
    }
