"""`tpiedge demo`: three processes of unequal shares continue a story together."""

from pathlib import Path

import click

from tpiedge.cli.laboratory import emulated
from tpiedge.cli.network_options import testbed_option
from tpiedge.cli.once import positions
from tpiedge.cli.options import arithmetic_options
from tpiedge.cli.path_options import cache_option
from tpiedge.cli.table import print_table
from tpiedge.local.answer import collect
from tpiedge.local.launch import Layout, launch, plan_cluster
from tpiedge.local.prepare import prepare
from tpiedge.model.source import DEMO
from tpiedge.planner.solve import Plan
from tpiedge.units import counted, format_bytes, format_seconds
from tpiedge.wire.control import Stats
from tpiedge.wire.fields import Compute
from tpiedge.wire.requests import GenerationRequest

_PROMPT = "Once upon a time"
_TOKENS = 200
_NODES = 3
_SHARES = ("3", "2", "1")


@click.command()
@click.option("--prompt", default=_PROMPT, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1, 400), default=_TOKENS, show_default=True)
@arithmetic_options
@testbed_option
@cache_option
def demo(
    prompt: str,
    max_tokens: int,
    precision: str | None,
    compute: Compute | None,
    testbed_name: str | None,
    cache: Path | None,
) -> None:
    """Watch three nodes of unequal shares answer together with the bundled model."""
    testbed = emulated(testbed_name, None)
    nodes = _NODES if testbed is None else min(_NODES, len(testbed))
    model = prepare(DEMO, precision, compute, cache)
    layout = Layout(nodes, ",".join(_SHARES[:nodes]), 1, None, testbed=testbed)
    prompt_ids = tuple(model.tokenizer.encode(prompt))
    capacity = positions(model, None, prompt_ids, max_tokens)
    plan = plan_cluster(model, layout, capacity)
    tokens = capacity - len(prompt_ids)
    request = GenerationRequest("demo", prompt_ids, tokens, stop_ids=model.end_ids)
    click.echo(f"Starting {nodes} processes, joined by encrypted links ...", err=True)
    with launch(model, layout, plan, capacity) as cluster:
        click.echo(prompt, nl=False)
        answer = collect(
            cluster, request, model.tokenizer, (), lambda text: click.echo(text, nl=False), goes_on=True
        )
        click.echo("\n")
        stats = cluster.stats()
    _print_nodes(plan, stats)
    if answer.s_per_token:
        click.echo(f"\n{counted(len(answer.token_ids), 'token')}, {1 / answer.s_per_token:.0f} tokens/s")


def _print_nodes(plan: Plan, stats: list[Stats]) -> None:
    rows = [
        [
            str(node.rank),
            f"{counted(len(share.attention), 'head')}, {counted(len(share.ffn), 'FFN tile')}",
            format_bytes(node.peak_rss_bytes),
            format_bytes(node.bytes_sent),
            format_seconds(node.compute_s),
            format_seconds(node.reduce_wait_s),
        ]
        for share, node in zip(plan.shares, stats, strict=True)
    ]
    print_table(["node", "share", "peak memory", "sent", "compute", "wait"], rows)
