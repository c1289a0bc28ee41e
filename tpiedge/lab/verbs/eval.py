"""The command `tpiedge eval`."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpiedge.cli.listing import ListingGroup, json_option
from tpiedge.cli.model_names import MODEL, model_option
from tpiedge.cli.options import (
    MEMORY,
    PRECISION,
    Location,
    arithmetic_options,
    cache_option,
    kv_option,
    together,
)
from tpiedge.lab.eval_text import EvalText, likelihood_of, read_text, refuse_other_vocabulary
from tpiedge.lab.verbs.flags import nodes_options, threads_option
from tpiedge.local.cluster import launch
from tpiedge.local.layout import Layout, plan_cluster
from tpiedge.local.prepare import PreparedModel, prepare
from tpiedge.units import counted
from tpiedge.wire.fields import Compute, KVPrecision

if TYPE_CHECKING:  # imports torch, which takes seconds
    from tpiedge.lab.eval_agreement import Comparison

_text_options = together(
    threads_option,
    click.option("--memory", type=MEMORY, help="Memory per node. Weights that do not fit stream from disk."),
    click.option(
        "--text",
        type=Location(dir_okay=False),
        metavar="FILE",
        help="Text in UTF-8; a form feed begins a new document.  [default: for 'demo' its held-out text]",
    ),
    click.option(
        "--context", type=int, help="Tokens of a window.  [default: the model's positions, 2048 at most]"
    ),
    click.option(
        "--stride", type=int, help="New tokens of each window after the first.  [default: half the context]"
    ),
    json_option,
    cache_option,
)


@click.group("eval", cls=ListingGroup)
def evaluate() -> None:
    """Measure a model's quality with a text."""


@evaluate.command()
@model_option
@arithmetic_options
@kv_option
@nodes_options
@_text_options
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
    """Measure a text's perplexity: exp of the mean of -log p of its tokens.

    A form feed in the text begins a new document. Tokens do not see earlier documents.
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
        **found,
        "seconds": seconds,
        "tokens_per_s": sum(len(window.ids) for window in wanted.windows) / seconds,
    }
    click.echo(json.dumps(record)) if as_json else _print(model, wanted, found)


def _print(model: PreparedModel, text: EvalText, figures: dict[str, float]) -> None:
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


@evaluate.command()
@model_option
@arithmetic_options
@kv_option
@click.option(
    "--reference",
    type=PRECISION,
    default="f32",
    show_default=True,
    help="The precision to compare with.",
)
@click.option(
    "--reference-model",
    "reference_name",
    type=MODEL,
    help="Another model to compare with.  [default: --model]",
)
@_text_options
def agreement(
    model_name: str,
    precision: str | None,
    compute: Compute | None,
    kv: KVPrecision | None,
    reference: str,
    reference_name: str | None,
    threads: int | None,
    memory: int | None,
    text: Path | None,
    context: int | None,
    stride: int | None,
    as_json: bool,
    cache: Path | None,
) -> None:
    """Measure how often a model and a reference have the same likeliest next token.

    Both models read the same text. Also measures the Kullback-Leibler divergence of the reference's probabilities from
    the model's probabilities, in nats.
    """
    layout = Layout(1, None, threads, memory)
    layout.check()
    other = prepare(reference_name or model_name, reference, None, cache)
    model = prepare(model_name, precision, compute, cache, kv)
    if reference_name is not None:
        refuse_other_vocabulary(model, other)
    wanted = read_text(model, text, context, stride, other)
    from tpiedge.lab.eval_agreement import compare

    found = compare(model, other, layout, wanted)
    record = {**model.described(), "reference": other.described(), **wanted.described(), **found.described()}
    click.echo(json.dumps(record)) if as_json else _print_agreement(model, other, wanted, found)


def _print_agreement(model: PreparedModel, other: PreparedModel, text: EvalText, found: "Comparison") -> None:
    of_model, of_reference = (_figure(value, ".4f") for value in found.perplexities())
    mean, p95, largest = (_figure(value, ".3g") for value in found.divergence().values())
    click.echo(
        f"{100 * found.agreement:.2f} % of {found.positions} positions have the reference's likeliest token; "
        f"divergence {mean} nats on average, {p95} at the 95th percentile, {largest} at most"
    )
    click.echo(f"perplexity {of_model}, of the reference {of_reference}")
    click.echo(
        f"{_words(model)}, against {_words(other)}; {text.name}, {counted(text.documents, 'document')}"
    )


def _figure(value: float | None, form: str) -> str:
    return "beyond any number" if value is None else format(value, form)


def _words(model: PreparedModel) -> str:
    return f"{model.name} (weights in {model.pack.precision.value}, {model.compute} arithmetic, KV in {model.kv})"
