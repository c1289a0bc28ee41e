"""`tpiedge bench`: what a cluster on this computer reaches, in numbers that can be compared within one run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.bench_allreduce import allreduce
from tpiedge.cli.bench_memory import memory, memory_run
from tpiedge.cli.benching import ask, check_lengths, milliseconds, spread
from tpiedge.cli.launch import Layout, launch, plan_cluster
from tpiedge.cli.prepare import PreparedModel, cache_option, prepare
from tpiedge.cli.table import print_table
from tpiedge.errors import UserError
from tpiedge.units import format_bytes
from tpiedge.wire.fields import Compute

__all__ = ["bench"]


@click.group()
def bench() -> None:
    """Measure this computer."""


bench.add_command(allreduce)
bench.add_command(memory)
bench.add_command(memory_run)


@dataclass(frozen=True)
class _Setting:
    """One cluster to measure: nodes x threads."""

    nodes: int
    threads: int

    @staticmethod
    def parse(text: str) -> "_Setting":
        nodes, _, threads = text.partition("x")
        try:
            return _Setting(int(nodes), int(threads))
        except ValueError:
            raise UserError(f"--settings {text!r}: write NODESxTHREADS, like 1x2,2x1") from None

    def __str__(self) -> str:
        return f"{self.nodes}x{self.threads}"


@bench.command()
@click.option("--model", "model_name", required=True, help="'demo', a checkpoint's folder or a pack.")
@click.option(
    "--settings", default="1x2,2x1", show_default=True, help="NODESxTHREADS, measured in alternation."
)
@click.option("--precision", type=click.Choice(["f32", "bf16"]))
@click.option("--compute", type=click.Choice(["f32", "bf16"]))
@click.option("--prompt-tokens", type=click.IntRange(1, 8192), default=64, show_default=True)
@click.option("--tokens", type=click.IntRange(2, 4096), default=24, show_default=True)
@click.option("--repeats", type=click.IntRange(1, 100), default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@cache_option
def decode(
    model_name: str,
    settings: str,
    precision: str | None,
    compute: Compute | None,
    prompt_tokens: int,
    tokens: int,
    repeats: int,
    as_json: bool,
    cache: Path | None,
) -> None:
    """Prefill and decode speed of clusters of different sizes.

    Every repeat measures each setting once, each in a fresh cluster, with one request to warm up.
    """
    wanted = [_Setting.parse(item) for item in settings.split(",")]
    for setting in wanted:
        Layout(setting.nodes, None, setting.threads, None).check()
    model = prepare(model_name, precision, compute, cache)
    check_lengths(model, prompt_tokens, tokens)
    runs: dict[str, list[dict[str, Any]]] = {str(setting): [] for setting in wanted}
    for repeat in range(repeats):
        for setting in wanted:
            click.echo(f"repeat {repeat + 1} of {repeats}: {setting}", err=True)
            runs[str(setting)].append(_measure(model, setting, prompt_tokens, tokens))
    record = {
        "model": model.name,
        "precision": model.pack.precision.value,
        "compute": model.compute,
        "prompt_tokens": prompt_tokens,
        "tokens": tokens,
        "repeats": repeats,
        "settings": {name: _summarise(samples) for name, samples in runs.items()},
    }
    if as_json:
        click.echo(json.dumps(record))
    else:
        _print_decode(record)


def _measure(model: PreparedModel, setting: _Setting, prompt_tokens: int, tokens: int) -> dict[str, Any]:
    """A warm-up, a prefill of the whole prompt, then a decode that keeps the prompt: one token in every step. All
    weights are resident; where some are streamed, "layers_s_per_token" would lack what the head waits for."""
    layout = Layout(setting.nodes, None, setting.threads, None)
    capacity = prompt_tokens + tokens
    plan = plan_cluster(model, layout, capacity)
    with launch(model, layout, plan, capacity) as cluster:
        ask(cluster, model, prompt_tokens, 2, keep=False)
        prefill = ask(cluster, model, prompt_tokens, 1, keep=False)
        before = cluster.stats()
        decode = ask(cluster, model, prompt_tokens, tokens, keep=True)
        after = cluster.stats()
    steps = after[0].steps - before[0].steps

    def per_step(counter: str) -> list[float]:
        pairs = zip(before, after, strict=True)
        return [(getattr(end, counter) - getattr(start, counter)) / steps for start, end in pairs]

    s_per_token = decode.s_per_token or 0.0
    head_s = per_step("head_s")[0]
    return {
        "prefill_tokens_per_s": prompt_tokens / prefill.ttft_s,
        "s_per_token": s_per_token,
        "head_s_per_token": head_s,
        "layers_s_per_token": s_per_token - head_s,
        "peak_rss_bytes": [node.peak_rss_bytes for node in after],
        "weight_bytes": [node.weight_bytes for node in after],
        "kv_bytes": [node.kv_bytes for node in after],
        "compute_s_per_token": per_step("compute_s"),
        "reduce_wait_s_per_token": per_step("reduce_wait_s"),
    }


def _summarise(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median, minimum and maximum of every number; the memory figures of the last run."""
    summary: dict[str, Any] = {}
    for name, value in samples[-1].items():
        if isinstance(value, list):
            summary[name] = value
        else:
            summary[name] = spread([sample[name] for sample in samples])
    return summary


def _print_decode(record: dict[str, Any]) -> None:
    rows = [
        [
            name,
            f"{summary['prefill_tokens_per_s']['median']:.1f}",
            milliseconds(summary["s_per_token"]),
            milliseconds(summary["layers_s_per_token"]),
            milliseconds(summary["head_s_per_token"]),
            format_bytes(max(summary["peak_rss_bytes"])),
        ]
        for name, summary in record["settings"].items()
    ]
    print_table(["nodes x threads", "prefill tok/s", "ms/token", "layers", "head", "peak memory"], rows)
