"""`tpiedge eval perplexity`: how well a model predicts a text, computed by a cluster as it serves."""

import json
import time
from pathlib import Path

import click

from tpiedge.cli.model_names import model_option
from tpiedge.cli.options import arithmetic_options, cache_option, kv_option
from tpiedge.lab.evaluation.perplexity import Likelihood, likelihood_of
from tpiedge.lab.evaluation.text import EvalText, read_text
from tpiedge.lab.verbs.eval_options import (
    context_option,
    json_option,
    memory_option,
    stride_option,
    text_option,
    threads_option,
)
from tpiedge.local.launch import Layout, launch, plan_cluster
from tpiedge.local.prepare import PreparedModel, prepare
from tpiedge.units import counted
from tpiedge.wire.fields import Compute, KVPrecision


@click.command()
@model_option
@arithmetic_options
@kv_option
@click.option("--nodes", type=int, default=1, show_default=True, help="Number of processes.")
@click.option("--shares", help="Relative weights, one per node: 3,1,2.  [default: even]")
@threads_option
@memory_option
@text_option
@context_option
@stride_option
@json_option
@cache_option
def perplexity(
    model_name: str,
    precision: str | None,
    compute: Compute | None,
    kv: KVPrecision | None,
    nodes: int,
    shares: str | None,
    threads: int | None,
    memory: int | None,
    text: Path | None,
    context: int | None,
    stride: int | None,
    as_json: bool,
    cache: Path | None,
) -> None:
    """Perplexity of a text: exp of the mean of -log p of its tokens, each given those before it.

    A form feed in the text begins a new document, which is read by itself.
    """
    layout = Layout(nodes, shares, threads, memory)
    layout.check()
    model = prepare(model_name, precision, compute, cache, kv)
    wanted = read_text(model, text, context, stride)
    capacity = wanted.longest
    plan = plan_cluster(model, layout, capacity)
    with launch(model, layout, plan, capacity) as cluster:
        started = time.perf_counter()
        found = likelihood_of(cluster, wanted)
        seconds = time.perf_counter() - started
    record = {
        **model.described(),
        "nodes": nodes,
        "threads": layout.threads_per_node,
        **wanted.described(),
        **found.described(),
        "seconds": seconds,
        "tokens_per_s": sum(len(window.ids) for window in wanted.windows) / seconds,
    }
    click.echo(json.dumps(record)) if as_json else _print(model, wanted, found)


def _print(model: PreparedModel, text: EvalText, found: Likelihood) -> None:
    figures = found.described()
    click.echo(
        f"perplexity {figures['perplexity']:.4f} ({figures['nats_per_token']:.5f} nats per token, "
        f"{figures['bits_per_byte']:.5f} bits per byte)"
    )
    click.echo(
        f"{model.name}, weights in {model.pack.precision.value}, {model.compute} arithmetic, KV in {model.kv}; "
        f"{text.name}: "
        f"{counted(text.scored, 'token')} scored, {counted(text.scored_bytes, 'byte')}, "
        f"{counted(text.documents, 'document')}, "
        f"context {text.context}, stride {text.stride}"
    )
