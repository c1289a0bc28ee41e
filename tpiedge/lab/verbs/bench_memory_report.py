"""What `tpiedge bench memory` prints for people."""

from collections.abc import Mapping
from typing import Any

import click

from tpiedge.cli.table import print_table
from tpiedge.lab.bench.figures import milliseconds
from tpiedge.units import counted, format_bytes, format_seconds


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
    header = ["budget", "loose", "tight", "stall ms/block", "predicted", "I/O hidden", "predicted", "retain"]
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
        _retention(node),
    ]


def _retention(node: Mapping[str, Any]) -> str:
    """What would reach the steady state: the paper's period of FFN blocks, and our part of the bytes."""
    period, share = node["retention_period"], node["steady"]["pinned_share"]
    words = {0: "no block", 1: "every FFN block", None: "more than every FFN block"}
    return f"{words.get(period, f'1 of {period} FFN blocks')}; {share:.0%} of bytes"


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
