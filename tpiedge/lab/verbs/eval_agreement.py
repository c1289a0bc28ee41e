"""`tpiedge eval agreement`: what a precision changes, position by position of a given text."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpiedge.cli.model_names import MODEL, model_option
from tpiedge.cli.options import arithmetic_options, cache_option, kv_option
from tpiedge.lab.evaluation.reference import check_reference, refuse_other_vocabulary
from tpiedge.lab.evaluation.text import EvalText, read_text
from tpiedge.lab.verbs.eval_options import (
    context_option,
    json_option,
    memory_option,
    stride_option,
    text_option,
    threads_option,
)
from tpiedge.local.launch import Layout
from tpiedge.local.prepare import PreparedModel, prepare
from tpiedge.pack.layout import Precision
from tpiedge.units import counted
from tpiedge.wire.fields import Compute, KVPrecision

if TYPE_CHECKING:  # imports torch, which takes seconds
    from tpiedge.lab.evaluation.comparison import Comparison


@click.command()
@model_option
@arithmetic_options
@kv_option
@click.option(
    "--reference",
    type=click.Choice([one.value for one in Precision]),
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
@threads_option
@memory_option
@text_option
@context_option
@stride_option
@json_option
@cache_option
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
    """How often the likeliest next token is the reference's, and how far the probabilities are from its own.

    Both are given the text, whatever they would have said. The distance is the Kullback-Leibler divergence of the
    reference's probabilities from the model's, in nats.
    """
    layout = Layout(1, None, threads, memory)
    layout.check()
    other_name = reference_name or model_name
    check_reference(other_name, reference_name is not None, reference, cache)
    model = prepare(model_name, precision, compute, cache, kv)
    other = prepare(other_name, reference, None, cache)
    if reference_name is not None:
        refuse_other_vocabulary(model, other)
    wanted = read_text(model, text, context, stride, other)
    from tpiedge.lab.evaluation.agreement import compare

    found = compare(model, other, layout, wanted)
    record = {
        **model.described(),
        "reference": other.described(),
        **wanted.described(),
        **found.described(),
    }
    for notice in found.notices():
        click.echo(f"tpiedge: {notice}", err=True)
    click.echo(json.dumps(record)) if as_json else _print(model, other, wanted, found)


def _print(model: PreparedModel, other: PreparedModel, text: EvalText, found: "Comparison") -> None:
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
