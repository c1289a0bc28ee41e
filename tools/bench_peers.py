"""Compare tpiedge with other software on this computer, side by side in one run.

    .venv/bin/python tools/bench_peers.py transformers CHECKPOINT --precision bf16 [--compute bf16] [--threads 2]

Both hold the same weights at the same time and answer in alternation (A B A B ...), so that a noisy neighbour hits
both. Printed: medians with minimum and maximum, and the ratio pair by pair. Make the checkpoint with
tools/make_checkpoint.py.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tpiedge.cli.answer import Answer, collect
from tpiedge.cli.launch import Layout, launch, plan_cluster
from tpiedge.cli.prepare import prepare
from tpiedge.nodes.cluster import LocalCluster
from tpiedge.wire.requests import GenerationRequest

Measure = Callable[[Sequence[int], int], tuple[float, float]]
"""(prompt ids, new tokens) -> (seconds to the first token, seconds per further token)."""


def main() -> int:
    """Parse the command line and run a comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("transformers", help="decode and prefill of one process each, the same threads")
    verb.add_argument("checkpoint", type=Path)
    verb.add_argument("--precision", choices=("f32", "bf16"), default="bf16")
    verb.add_argument(
        "--compute", choices=("f32", "bf16"), help="tpiedge's arithmetic [default: --precision's]"
    )
    verb.add_argument("--threads", type=int, default=2)
    verb.add_argument("--prompt-tokens", type=int, default=64)
    verb.add_argument("--tokens", type=int, default=24)
    verb.add_argument("--repeats", type=int, default=5)
    verb.add_argument("--cache", type=Path)
    arguments = parser.parse_args()
    print(json.dumps(compare_transformers(arguments), indent=2))
    return 0


def compare_transformers(arguments: argparse.Namespace) -> dict[str, object]:
    """transformers against one node, in alternation."""
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
    prompt = [(7919 * index + 13) % 30000 for index in range(arguments.prompt_tokens)]
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
        "decode_s_per_token": {name: _spread([s for _, s in pairs]) for name, pairs in samples.items()},
        "prefill_s": {name: _spread([s for s, _ in pairs]) for name, pairs in samples.items()},
        "decode_speed_ratio": _spread([p / o for (_, p), (_, o) in zip(peer, own, strict=True)]),
        "prefill_speed_ratio": _spread([p / o for (p, _), (o, _) in zip(peer, own, strict=True)]),
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


if __name__ == "__main__":
    sys.exit(main())
