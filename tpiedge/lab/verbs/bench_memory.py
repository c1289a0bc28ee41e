"""The command `tpiedge bench memory`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.listing import json_option, print_table
from tpiedge.cli.model_names import model_option
from tpiedge.cli.options import arithmetic_options, cache_option, kv_option
from tpiedge.errors import OutOfMemory
from tpiedge.lab.bench.figures import check_lengths, milliseconds
from tpiedge.lab.bench.memory_runs import (
    Budget,
    SettingRun,
    budgets,
    measure,
    measure_in_group,
    measure_sweep,
    report,
    smallest_budget,
    whole,
)
from tpiedge.lab.verbs.flags import nodes_options, repeats_option, threads_option
from tpiedge.local.layout import Layout
from tpiedge.local.prepare import PreparedModel, prepare
from tpiedge.units import counted, format_bytes, format_seconds
from tpiedge.wire.fields import Compute, KVPrecision


def print_report(record: Mapping[str, Any]) -> None:
    settings: dict[str, Any] = record["settings"]
    header = [
        "budget",
        "per node",
        "ms/token",
        "read/token",
        "disk/s",
        "bound reached",
        "disk busy",
        "I/O hidden",
    ]
    print_table([*header, "peak RSS"], [_row(name, found) for name, found in settings.items()])
    for name, found in settings.items():
        _print_group(name, found)
        for failure in found["failures"]:
            click.echo(f"{name} failed: {failure}")
    _print_summary(record)


def _row(name: str, found: Mapping[str, Any]) -> list[str]:
    size, disk = format_bytes(found["budget_bytes"]), format_bytes(found["disk_bytes_per_s"]["median"])
    if "nodes" not in found:
        return [name, size, "failed", "", disk, "", "", "", ""]
    reached = found["bound_reached"]
    return [
        name,
        size,
        milliseconds(found["s_per_token"]),
        format_bytes(found["streamed_bytes_per_token"]),
        disk,
        f"{reached['median']:.0%} ({reached['min']:.0%}-{reached['max']:.0%})",
        f"{found['disk_busy']['median']:.0%}",
        _hidden(found["nodes"][0]),
        format_bytes(max(node["peak_rss_bytes"] for node in found["nodes"])),
    ]


def _hidden(node: Mapping[str, Any]) -> str:
    return f"{max(0.0, 1 - node['stall_s'] / node['load_s']):.0%}" if node["load_s"] else ""


def _print_group(name: str, found: Mapping[str, Any]) -> None:
    group = found.get("cgroup")
    if group is not None:
        click.echo(
            f"{name}: the control group used at most {format_bytes(group['peak_bytes'])} of "
            f"{format_bytes(group['limit_bytes'])}, {counted(group['oom_kills'], 'process', 'processes')} killed "
            "for memory"
        )


def _print_summary(record: Mapping[str, Any]) -> None:
    if record["compute_s_per_token"] is not None:
        seconds = format_seconds(record["compute_s_per_token"])
        click.echo(f"computing alone ({record['compute_from']}): {seconds}/token")
    click.echo(f"least memory that works: {format_bytes(record['smallest_budget_bytes'])} per node")
    if not record["disk_is_direct"]:
        click.echo("the file system refuses direct reads: the page cache may have answered some of them")


@click.command()
@model_option
@arithmetic_options
@kv_option
@nodes_options
@threads_option
@click.option(
    "--budgets",
    "wanted",
    default="window,25%,50%,75%,all",
    show_default=True,
    help="Memory per node, a list of: min (the least that works), window (nothing pinned), 700MB, "
    "40% (of the way from min to all), all.",
)
@click.option("--prompt-tokens", type=click.IntRange(1, 8192), default=8, show_default=True)
@click.option("--tokens", type=click.IntRange(2, 4096), default=12, show_default=True)
@repeats_option
@click.option("--cgroup", is_flag=True, help="Run each size in a control group. Needs Linux and root.")
@json_option
@cache_option
def memory(
    model_name: str,
    precision: str | None,
    compute: Compute | None,
    kv: KVPrecision | None,
    nodes: int,
    shares: str | None,
    threads: int | None,
    wanted: str,
    prompt_tokens: int,
    tokens: int,
    repeats: int,
    cgroup: bool,
    as_json: bool,
    cache: Path | None,
) -> None:
    """Measure decode speed with weights that stream from disk, for several sizes of memory.

    Every repeat measures each size once, in a new cluster, between two measurements of the disk.
    """
    # The same split in every setting: by itself the planner would move weights to nodes with more room.
    layout = Layout(nodes, shares or ",".join(["1"] * nodes), threads, None)
    layout.check()
    model = prepare(model_name, precision, compute, cache, kv)
    check_lengths(model, prompt_tokens, tokens)
    capacity = prompt_tokens + tokens
    found = budgets(wanted, model, layout, capacity)
    everything = _everything(found, model, layout, capacity)
    runs: dict[str, list[SettingRun]] = {budget.name: [] for budget in (*found, *everything)}
    for repeat in range(repeats):
        for budget in (*found, *everything):
            size = format_bytes(budget.nbytes)
            click.echo(f"repeat {repeat + 1} of {repeats}: {budget.name} ({size} per node)", err=True)
            runs[budget.name].append(_run(model, budget, prompt_tokens, tokens, cgroup))
    record = {
        **model.described(),
        "nodes": nodes,
        "threads": layout.threads_per_node,
        "prompt_tokens": prompt_tokens,
        "tokens": tokens,
        "repeats": repeats,
        "cgroup": cgroup,
        "smallest_budget_bytes": smallest_budget(model, layout, capacity),
        **report(found, runs),
    }
    if as_json:
        click.echo(json.dumps(record))
    else:
        print_report(record)


def _everything(found: Sequence[Budget], model: PreparedModel, layout: Layout, capacity: int) -> list[Budget]:
    if any(not budget.streams(model) for budget in found):
        return []
    try:
        return [whole(model, layout, capacity)]
    except OutOfMemory:
        return []


def _run(model: PreparedModel, budget: Budget, prompt_tokens: int, tokens: int, in_group: bool) -> SettingRun:
    sweep, _ = budget.held(model)[0]
    before = measure_sweep(model.pack, sweep)
    if in_group:
        run = measure_in_group(model, budget, prompt_tokens, tokens)
    else:
        run = SettingRun(measure(model, budget, prompt_tokens, tokens))
    after = measure_sweep(model.pack, sweep)
    return replace(
        run, disk=(before.bytes_per_s, after.bytes_per_s), disk_is_direct=before.is_direct and after.is_direct
    )
