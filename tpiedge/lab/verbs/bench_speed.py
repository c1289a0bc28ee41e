"""The command `tpiedge bench speed`, which `tpiedge bench` also runs."""

import json
import time
from pathlib import Path

import click

from tpiedge.cli.listing import json_option
from tpiedge.cli.model_names import optional_model_option
from tpiedge.cli.options import Number, arithmetic_options, cache_option
from tpiedge.lab.bench.figures import ask, check_lengths
from tpiedge.local.cluster import launch
from tpiedge.local.layout import Layout, plan_cluster
from tpiedge.local.prepare import prepare
from tpiedge.model.source import DEMO
from tpiedge.progress import say
from tpiedge.units import counted
from tpiedge.wire.fields import Compute

_PROMPT, _LEAST, _MOST = 64, 8, 256
"""Tokens of a prompt; least and most tokens of an answer."""


@click.command()
@optional_model_option
@arithmetic_options
@click.option("--seconds", type=Number(0.1, 3600), default=15.0, show_default=True, help="Time of decoding.")
@json_option
@cache_option
def speed(
    model_name: str | None,
    precision: str | None,
    compute: Compute | None,
    seconds: float,
    as_json: bool,
    cache: Path | None,
) -> None:
    """Measure tokens per second of this computer alone. MODEL defaults to the bundled demo model."""
    model, layout = prepare(model_name or DEMO, precision, compute, cache), Layout(1, None, None, None)
    check_lengths(model, _PROMPT, _LEAST)
    capacity = min(_PROMPT + _MOST, model.config.context_tokens)
    tokens, decode_s = 0, 0.0
    with launch(model, layout, plan_cluster(model, layout, capacity), capacity) as cluster:
        first = ask(cluster, model, _PROMPT, _LEAST, keep=True)  # it also reads weights and the prompt
        fit = int(seconds / 4 / (first.s_per_token or 1.0))
        length = max(_LEAST, min(fit, capacity - _PROMPT))
        say(f"decoding for {seconds:g} s")
        deadline = time.monotonic() + seconds
        while not tokens or time.monotonic() < deadline:
            answer = ask(cluster, model, _PROMPT, length, keep=True)
            tokens, decode_s = tokens + len(answer.token_ids) - 1, decode_s + answer.decode_s
    rate, threads = tokens / decode_s, layout.threads_per_node
    if as_json:
        record = {**model.described(), "prompt_tokens": _PROMPT, "threads": threads}
        click.echo(json.dumps(record | {"tokens": tokens, "decode_s": decode_s, "tokens_per_s": rate}))
        return
    click.echo(f"{rate:.1f} tokens/s")
    other = "" if model_name else "; 'tpiedge bench speed MODEL' measures another model"
    click.echo(
        f"This is how fast this computer alone answers with {model.name} in {model.pack.precision.value} on "
        f"{counted(threads, 'thread')}, the mean of {counted(tokens, 'token')}{other}."
    )
