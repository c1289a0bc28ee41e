"""The record of `tpiedge bench serve`, for people."""

from typing import Any

import click

from tpiedge.cli.table import print_table
from tpiedge.lab.bench.figures import milliseconds

_PERCENTILES = ("p50", "p90", "p99", "max")


def print_serve_report(record: dict[str, Any]) -> None:
    """Medians of the repeats, with minimum and maximum in brackets."""
    prefill = record["prefill"]
    click.echo(
        f"a prompt of {prefill['prompt_tokens']} tokens alone: {_plain(prefill['tokens_per_s'], 1)} tokens/s"
    )
    click.echo("")
    rates = ["tokens/s", "while all answer", "of prefill", "requests/s", "errors"]
    print_table(["clients", *rates], [_rates(load) for load in record["loads"]])
    for name, title in (
        ("first_token_s", "ms to the first token"),
        ("between_tokens_s", "ms between tokens"),
    ):
        click.echo("")
        rows = [[_load(load), *_times(load[name])] for load in record["loads"]]
        print_table([title, *_PERCENTILES], rows)
    for load in record["loads"]:
        if load["errors"]:
            click.echo(f"{_load(load)}: {load['errors']} of {load['requests']} failed: {load['error']}")
    if record["long_prompt"] is not None:
        _print_long(record["long_prompt"])


def _rates(load: dict[str, Any]) -> list[str]:
    return [
        _load(load),
        _plain(load["tokens_per_s"], 1),
        _plain(load["answering_tokens_per_s"], 1),
        _plain(load["answering_to_prefill"], 2),
        _plain(load["requests_per_s"], 2),
        str(load["errors"]),
    ]


def _load(load: dict[str, Any]) -> str:
    return f"{load['rate_per_s']:g}/s" if load["concurrency"] is None else str(load["concurrency"])


def _times(found: dict[str, dict[str, float]] | None) -> list[str]:
    return ["-" if found is None else milliseconds(found[name]) for name in _PERCENTILES]


def _plain(found: dict[str, float] | None, digits: int) -> str:
    if found is None:
        return "-"
    median, low, high = (f"{found[name]:.{digits}f}" for name in ("median", "min", "max"))
    return f"{median} ({low}-{high})"


def _print_long(found: dict[str, Any]) -> None:
    click.echo("")
    rows = [
        ["before", *_times(found["between_tokens_normal_s"])],
        ["meanwhile", *_times(found["between_tokens_beside_s"])],
    ]
    title = f"ms between tokens of {found['others']} others"
    print_table([title, *_PERCENTILES], rows)
    click.echo(
        f"a prompt of {found['prompt_tokens']} tokens: {_plain(found['beside_tokens_per_s'], 1)} tokens/s beside them, "
        f"{_plain(found['alone_tokens_per_s'], 1)} alone, {_plain(found['beside_to_alone'], 2)} of it; "
        f"their p99 is {_plain(found['p99_to_normal'], 2)} times as long"
    )
