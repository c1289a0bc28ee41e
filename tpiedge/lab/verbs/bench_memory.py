"""What `tpiedge bench memory` prints for people."""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from tpiedge.cli.model_names import model_option
from tpiedge.cli.options import arithmetic_options, cache_option, kv_option
from tpiedge.cli.table import print_table
from tpiedge.errors import OutOfMemory
from tpiedge.lab.bench.figures import check_lengths, milliseconds
from tpiedge.lab.bench.memory_report import GroupPeak, SettingRun, report
from tpiedge.lab.bench.memory_runs import (
    Budget,
    Sample,
    budgets,
    measure,
    measure_sweep,
    run_in_group,
    smallest_budget,
    whole,
)
from tpiedge.lifeline import guard
from tpiedge.local.launch import Layout, plan_cluster
from tpiedge.local.prepare import PreparedModel, prepare
from tpiedge.units import counted, format_bytes, format_seconds
from tpiedge.wire.fields import Compute, KVPrecision, Pin
from tpiedge.wire.weights import Keeping


def print_report(record: Mapping[str, Any]) -> None:
    """Prints the record as tables on standard output."""
    settings: dict[str, Any] = record["settings"]
    header = [
        "budget",
        "per node",
        "ms/token",
        "read/token",
        "disk/s",
        "bound reached",
        "disk busy",
        "stalls",
    ]
    header.append("peak RSS")
    print_table(header, [_row(name, found) for name, found in settings.items()])
    click.echo()
    header = ["budget", "loose", "tight", "stall ms/block", "predicted", "I/O hidden", "predicted", "to pin"]
    print_table(header, [_steady_row(name, found) for name, found in settings.items() if "steady" in found])
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
        f"{sum(node['stalls'] for node in found['nodes']):.0f}",
        format_bytes(max(node["peak_rss_bytes"] for node in found["nodes"])),
    ]


def _steady_row(name: str, found: Mapping[str, Any]) -> list[str]:
    """The row of rank 0, which has the head as well."""
    node = found["steady"][0]
    return [
        name,
        "holds" if node["loose"] else "fails",
        "holds" if node["tight"]["holds"] else "fails",
        f"{1e3 * node['measured_stall_s_per_block']:.2f}",
        f"{1e3 * node['predicted_stall_s_per_block']:.2f}",
        f"{node['measured_hidden']:.0%}",
        f"{node['predicted_hidden']:.0%}",
        f"{node['steady']['pinned_share']:.0%} of bytes",
    ]


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
    for smaller, larger in record["rises"]:
        click.echo(f"more memory is not faster: {larger} against {smaller}")


_BUDGETS = "window,25%,50%,75%,all"


@dataclass(frozen=True)
class _Work:
    """What every run does, in which kind of process."""

    prompt_tokens: int
    tokens: int
    in_group: bool


@dataclass(frozen=True)
class _Order:
    """A run for another process. Not flags: settings must not change them."""

    pack: str
    compute: Compute
    kv: KVPrecision
    nodes: int
    shares: str | None
    threads: int
    memory_bytes: int | None
    pin: Pin
    prompt_tokens: int
    tokens: int


@click.command()
@model_option
@arithmetic_options
@kv_option
@click.option("--nodes", type=int, default=1, show_default=True, help="Number of processes.")
@click.option("--shares", help="Relative weights, one per node: 3,1,2.  [default: even]")
@click.option("--threads", type=int, help="Threads per node.  [default: the cores divided by the nodes]")
@click.option(
    "--budgets",
    "wanted",
    default=_BUDGETS,
    show_default=True,
    help="Memory per node, in alternation: min (the least that works), window (nothing pinned), 700MB, "
    "40% (of the way from min to all), all.",
)
@click.option("--prompt-tokens", type=click.IntRange(1, 8192), default=8, show_default=True)
@click.option("--tokens", type=click.IntRange(2, 4096), default=12, show_default=True)
@click.option("--repeats", type=click.IntRange(1, 100), default=5, show_default=True)
@click.option("--cgroup", is_flag=True, help="Run each setting in a control group of its size (Linux, root).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
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
    """Decode speed of weights that stream from disk, for several sizes of memory.

    Every repeat measures each setting once, each in a fresh cluster, between two measurements of the disk.
    """
    # The same split in every setting: by itself the planner would move weights to nodes with more room.
    layout = Layout(nodes, shares or ",".join(["1"] * nodes), threads, None)
    layout.check()
    model = prepare(model_name, precision, compute, cache, kv)
    check_lengths(model, prompt_tokens, tokens)
    capacity = prompt_tokens + tokens
    found = budgets(wanted, model, layout, capacity)
    everything = _everything(found, model, layout, capacity)
    runs = _measured(model, [*found, *everything], _Work(prompt_tokens, tokens, cgroup), repeats)
    record = {
        **model.described(),
        "nodes": nodes,
        "threads": layout.threads_per_node,
        "prompt_tokens": prompt_tokens,
        "tokens": tokens,
        "repeats": repeats,
        "cgroup": cgroup,
        "smallest_budget_bytes": smallest_budget(model, layout, capacity),
        **report(model, found, runs),
    }
    if as_json:
        click.echo(json.dumps(record))
    else:
        print_report(record)


@click.command(hidden=True)
@click.argument("order")
def memory_run(order: str) -> None:
    """One run of one setting, ORDER in JSON, as JSON: what `bench memory --cgroup` starts. Ends with its standard
    input."""
    guard(lambda: os.kill(os.getpid(), signal.SIGTERM), signal.SIGTERM)
    found = _Order(**json.loads(order))
    model = prepare(found.pack, None, found.compute, None, found.kv)
    sample = measure(model, _planned(found, model), found.prompt_tokens, found.tokens)
    click.echo(json.dumps(asdict(sample)))


def _everything(found: Sequence[Budget], model: PreparedModel, layout: Layout, capacity: int) -> list[Budget]:
    """A setting in which nothing streams, to compare with, where `found` has none and this computer allows it."""
    if any(not budget.streams(model) for budget in found):
        return []
    try:
        return [whole(model, layout, capacity)]
    except OutOfMemory:
        return []


def _measured(
    model: PreparedModel, found: Sequence[Budget], work: _Work, repeats: int
) -> dict[str, list[SettingRun]]:
    """The runs of each setting, by its name."""
    runs: dict[str, list[SettingRun]] = {budget.name: [] for budget in found}
    for repeat in range(repeats):
        for budget in found:
            size = format_bytes(budget.nbytes)
            click.echo(f"repeat {repeat + 1} of {repeats}: {budget.name} ({size} per node)", err=True)
            runs[budget.name].append(_run(model, budget, work))
    return runs


def _run(model: PreparedModel, budget: Budget, work: _Work) -> SettingRun:
    sweep, _ = budget.held(model)[0]
    before = measure_sweep(model.pack, sweep)
    run = _run_in_group(model, budget, work) if work.in_group else _run_here(model, budget, work)
    after = measure_sweep(model.pack, sweep)
    return replace(
        run,
        disk=(before.bytes_per_s, after.bytes_per_s),
        disk_is_direct=before.is_direct and after.is_direct,
    )


def _run_here(model: PreparedModel, budget: Budget, work: _Work) -> SettingRun:
    return SettingRun(measure(model, budget, work.prompt_tokens, work.tokens))


def _run_in_group(model: PreparedModel, budget: Budget, work: _Work) -> SettingRun:
    """All nodes and the process that started them share a limit of as many budgets as there are nodes."""
    limit_bytes = budget.nbytes * budget.layout.nodes
    order = _order(model, budget, work)
    ended = run_in_group(limit_bytes, ("bench", "memory-run", json.dumps(asdict(order))))
    sample = None if ended.record is None else Sample.of_json(ended.record)
    return SettingRun(sample, ended.failure, GroupPeak(limit_bytes, ended.peak_bytes, ended.oom_kills))


def _order(model: PreparedModel, budget: Budget, work: _Work) -> _Order:
    """The budget's run. Without its size the other process would plan for a part of what its group leaves free."""
    layout = budget.layout
    return _Order(
        pack=str(model.pack.path.absolute()),
        compute=model.compute,
        kv=model.kv,
        nodes=layout.nodes,
        shares=layout.shares,
        threads=layout.threads_per_node,
        memory_bytes=budget.nbytes,
        pin=layout.keeping.pin,
        prompt_tokens=work.prompt_tokens,
        tokens=work.tokens,
    )


def _planned(order: _Order, model: PreparedModel) -> Budget:
    layout = Layout(order.nodes, order.shares, order.threads, order.memory_bytes, Keeping(pin=order.pin))
    return Budget("", layout, plan_cluster(model, layout, order.prompt_tokens + order.tokens))
