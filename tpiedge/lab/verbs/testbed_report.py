"""What `tpiedge testbed status` and `check` print for people."""

import json
from collections.abc import Sequence
from typing import Any

import click

from tpiedge.cli.table import print_table
from tpiedge.lab.testbed.backends import Attached
from tpiedge.lab.testbed.measuring import Measured, expected_payload, expected_rtt_s
from tpiedge.lab.testbed.quantities import format_part, format_rate, format_time
from tpiedge.units import format_bytes

_DEVICES = ("device", "address", "cpus", "memory", "peak", "limit", "processes")
_LINKS = ("link", "latency", "jitter", "loss", "rate", "packets", "bytes", "dropped", "lost")
_CHECK = ("pair", "RTT", "ping", "should be", "off", "throughput", "should be", "off", "lost")


def print_status(record: dict[str, Any]) -> None:
    """Prints the record of `status_of`."""
    owner = f", belongs to process {record['owner_pid']}" if record["owner_pid"] else ""
    kind = "containers" if record["backend"] == "docker" else "namespaces"
    click.echo(f"{record['name']}: {record['state']}, of {kind}, network by {record['network']}{owner}\n")
    print_table(_DEVICES, [_device_row(device) for device in record["devices"]])
    click.echo()
    print_table(_LINKS, [_link_row(link) for link in record["links"]])
    click.echo("\nexpected one-way latency and rate, from the row to the column:")
    _print_matrix(record)


def print_check(testbed: Attached, measured: Sequence[Measured], as_json: bool) -> None:
    """Beside what the file says; `off` is the deviation."""
    records = [_check_record(testbed, item) for item in measured]
    if as_json:
        click.echo(json.dumps({"name": testbed.name, "network": testbed.network, "pairs": records}))
        return
    print_table(_CHECK, [_check_row(record) for record in records])


def _check_record(testbed: Attached, item: Measured) -> dict[str, Any]:
    there = testbed.expected(item.source, item.target)
    rtt_s = expected_rtt_s(there, testbed.expected(item.target, item.source))
    payload = expected_payload(there)
    return {
        "from": item.source,
        "to": item.target,
        "rtt_s": item.rtt_s,
        "ping_rtt_s": item.ping_rtt_s,
        "expected_rtt_s": rtt_s,
        "rtt_deviation": _deviation(item.rtt_s, rtt_s),
        "bytes_per_s": item.bytes_per_s,
        "expected_bytes_per_s": payload,
        "rate_deviation": _deviation(item.bytes_per_s, payload),
        "unanswered": item.lost,
    }


def _deviation(found: float | None, wanted: float | None) -> float | None:
    return None if found is None or not wanted else found / wanted - 1


def _check_row(record: dict[str, Any]) -> list[str]:
    ping = record["ping_rtt_s"]
    return [
        f"{record['from']} -> {record['to']}",
        f"{record['rtt_s'] * 1000:.2f} ms",
        "-" if ping is None else f"{ping * 1000:.2f} ms",
        f"{record['expected_rtt_s'] * 1000:.2f} ms",
        _signed(record["rtt_deviation"]),
        format_rate(record["bytes_per_s"]),
        format_rate(record["expected_bytes_per_s"]),
        _signed(record["rate_deviation"]),
        str(record["unanswered"]),
    ]


def _signed(deviation: float | None) -> str:
    return "-" if deviation is None else f"{deviation:+.1%}"


def _device_row(device: dict[str, Any]) -> list[str]:
    cpus = device["cpus"]
    return [
        device["name"],
        device["address"],
        "all" if not device["cpus_limited"] else f"{cpus:g}",
        *(_bytes(device[key]) for key in ("memory_used_bytes", "memory_peak_bytes", "memory_limit_bytes")),
        str(len(device["processes"])) if device["there"] else "gone",
    ]


def _bytes(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)


def _link_row(link: dict[str, Any]) -> list[str]:
    ends = (link["member"], link["uplink"]) if link["way"] == "up" else (link["uplink"], link["member"])
    counters = link["counters"] or {}
    return [
        f"{ends[0]} -> {ends[1]}",
        format_time(link["latency_s"]),
        format_time(link["jitter_s"]),
        format_part(link["loss"]),
        format_rate(link["bytes_per_s"]),
        *(str(counters.get(key, "-")) for key in ("packets", "bytes", "dropped", "lost")),
    ]


def _print_matrix(record: dict[str, Any]) -> None:
    names = [device["name"] for device in record["devices"]]
    pairs = {(pair["from"], pair["to"]): pair for pair in record["pairs"]}
    rows = [[source, *(_cell(pairs.get((source, target))) for target in names)] for source in names]
    print_table(["", *names], rows)


def _cell(pair: dict[str, Any] | None) -> str:
    if pair is None:
        return ""
    rate = "" if pair["bytes_per_s"] is None else f" {format_rate(pair['bytes_per_s'])}"
    return f"{format_time(pair['latency_s'])}{rate}"
