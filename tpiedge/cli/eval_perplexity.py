"""`tpiedge eval perplexity`: how well a model predicts a text, computed by a cluster as it serves."""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import click

from tpiedge.cli.eval_options import (
    context_option,
    json_option,
    memory_option,
    stride_option,
    text_option,
    threads_option,
)
from tpiedge.cli.eval_text import EvalText, Window, read_text
from tpiedge.cli.launch import Layout, launch, plan_cluster
from tpiedge.cli.options import arithmetic_options, kv_option
from tpiedge.cli.places import cache_option
from tpiedge.cli.prepare import PreparedModel, prepare
from tpiedge.cli.progress import ByteProgress
from tpiedge.errors import InternalError, UserError
from tpiedge.nodes.cluster import LocalCluster
from tpiedge.wire.control import PromptScores
from tpiedge.wire.fields import Compute, KVPrecision
from tpiedge.wire.requests import GenerationRequest

__all__ = ["Likelihood", "perplexity"]

_MOST_NATS = 700.0  # whose exponential is still a float


@dataclass(frozen=True)
class Likelihood:
    """Of a text: `nats` is the sum of -log p over its scored tokens. Raises UserError where it is no number."""

    nats: float
    tokens: int
    nbytes: int

    def __post_init__(self) -> None:
        if not self.nats / self.tokens < _MOST_NATS:
            raise UserError(
                f"the model gives the text {self.nats} nats, no perplexity: check the files of the model"
            )

    def described(self) -> dict[str, float]:
        """For JSON."""
        mean = self.nats / self.tokens
        return {
            "nats_per_token": mean,
            "perplexity": math.exp(mean),
            "bits_per_byte": self.nats / math.log(2) / self.nbytes,
        }


@click.command()
@click.option("--model", "model_name", required=True, help="'demo', a checkpoint's folder or a pack.")
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
        found = _measure(cluster, wanted)
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


def _measure(cluster: LocalCluster, text: EvalText) -> Likelihood:
    """One request for each window: its prompt's own scores are what is wanted."""
    progress = ByteProgress("scoring")
    nats, done = 0.0, 0
    try:
        for number, window in enumerate(text.windows):
            nats -= math.fsum(_scores(cluster, f"eval-{number}", window))
            done += window.scored
            progress(text.scored_bytes * done // text.scored, text.scored_bytes)
    finally:
        progress.finish(text.scored_bytes * done // text.scored)
    return Likelihood(nats, text.scored, text.scored_bytes)


def _scores(cluster: LocalCluster, name: str, window: Window) -> list[float]:
    """Log probabilities of the window's scored tokens."""
    request = GenerationRequest(name, window.ids, max_tokens=1, ignore_eos=True, prompt_scores=True)
    found: list[float] = []
    for event in cluster.generate(request):
        if isinstance(event, PromptScores):
            found += event.scores
    if len(found) != len(window.ids) - 1:
        raise InternalError(f"{len(found)} scores for a text of {len(window.ids)} tokens: report it")
    return found[window.first - 1 :]


def _print(model: PreparedModel, text: EvalText, found: Likelihood) -> None:
    figures = found.described()
    click.echo(
        f"perplexity {figures['perplexity']:.4f} ({figures['nats_per_token']:.5f} nats per token, "
        f"{figures['bits_per_byte']:.5f} bits per byte)"
    )
    click.echo(
        f"{model.name}, weights in {model.pack.precision.value}, {model.compute} arithmetic, KV in {model.kv}; "
        f"{text.name}: "
        f"{text.scored} tokens scored, {text.scored_bytes} bytes, {text.documents} documents, "
        f"context {text.context}, stride {text.stride}"
    )
