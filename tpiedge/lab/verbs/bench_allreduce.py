"""The command `tpiedge bench allreduce`."""

import contextlib
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import click

from tpiedge.cli.listing import json_option, print_table
from tpiedge.errors import UserError
from tpiedge.lab.bench.figures import (
    Dial,
    LinkSetting,
    check_devices,
    check_names,
    integers,
    link_settings,
    milliseconds,
    spread,
)
from tpiedge.lab.testbed.running import RunningTestbed, open_testbed
from tpiedge.lab.verbs.flags import repeats_option, testbed_option, varied_links, wires_option
from tpiedge.launch.child import Place
from tpiedge.planner.network import NetworkFacts, predict
from tpiedge.progress import say
from tpiedge.units import format_bytes
from tpiedge.wire.fields import CollectiveName, WirePrecision, wire_bytes


@dataclass(frozen=True)
class _Case:
    payload_bytes: int
    collective: CollectiveName
    wire: WirePrecision


@click.command()
@click.option("--nodes", default="2,4", show_default=True, help="Numbers of nodes, a list.")
@click.option(
    "--bytes", "sizes", default="4,8192,16384,32768,262144", show_default=True, help="Payload sizes, a list."
)
@click.option(
    "--collective", "names", default="all", show_default=True, help="all, or a list: star,mesh,two-shot."
)
@wires_option
@testbed_option
@varied_links
@click.option("--rounds", type=click.IntRange(10, 100_000), default=500, show_default=True)
@repeats_option
@json_option
def allreduce(
    nodes: str,
    sizes: str,
    names: str,
    wire: str,
    testbed_name: str | None,
    latency: str | None,
    rate: str | None,
    rounds: int,
    repeats: int,
    as_json: bool,
) -> None:
    """Measure the latency of an all-reduce among processes of this computer, over encrypted links.

    Every repeat measures each combination once, in the same processes. Link latencies in the output are one way. Rank 0
    is this process. In a testbed, rank 0 has the first device's network, but no limits.
    """
    counts = integers("--nodes", nodes, 2, 64)
    payloads = integers("--bytes", sizes, 4, 16 << 20)
    if any(payload % 4 for payload in payloads):
        raise UserError(f"--bytes {sizes!r}: payloads are f32, multiples of 4")
    collectives: Sequence[Any] = get_args(CollectiveName) if names == "all" else names.split(",")
    check_names("--collective", collectives, get_args(CollectiveName))
    check_names("--wire", wire.split(","), get_args(WirePrecision))
    given = itertools.product(payloads, collectives, wire.split(","))
    cases = list(dict.fromkeys(_Case(*case) for case in given))  # type: ignore[arg-type]
    settings = link_settings(latency, rate, testbed_name)
    if testbed_name is not None:
        check_devices(testbed_name, max(counts))
    started = time.monotonic()
    results: list[dict[str, Any]] = []
    for count in counts:
        with _places(testbed_name, count) as (testbed, places):
            results += _measure(testbed, places, count, settings, cases, rounds, repeats)
    if as_json:
        click.echo(json.dumps({"rounds": rounds, "repeats": repeats, "results": results}))
        return
    _print(results)
    click.echo(f"{repeats} x {rounds} rounds each at most, {time.monotonic() - started:.0f} s", err=True)


@contextlib.contextmanager
def _places(name: str | None, count: int) -> Iterator[tuple[RunningTestbed | None, tuple[Place, ...]]]:
    """Yields (testbed, places). With a testbed, this thread is then on the first device."""
    if name is None:
        yield None, ()
        return
    with open_testbed(name, say=say) as testbed:
        places = tuple(device.place for device in testbed.devices[:count])
        with testbed.inside(testbed.devices[0]):
            yield testbed, places


def _measure(
    testbed: RunningTestbed | None,
    places: Sequence[Place],
    count: int,
    settings: Sequence[LinkSetting],
    cases: Sequence[_Case],
    rounds: int,
    repeats: int,
) -> list[dict[str, Any]]:
    # Rank 0 is this process, so it needs torch, which no other verb's process loads.
    from tpiedge.lab.bench.reduce_cluster import ReduceCluster

    found: dict[tuple[LinkSetting, _Case], list[dict[str, Any]]] = {}
    with ReduceCluster(count, places) as cluster:
        for repeat, setting in itertools.product(range(repeats), settings):
            click.echo(f"{count} nodes, repeat {repeat + 1} of {repeats} {setting}", err=True)
            with Dial(testbed).turned(setting) if testbed else contextlib.nullcontext():
                facts = cluster.survey()
                for case in cases:
                    predicted_s = _predicted_s(case, facts)
                    # A measurement takes 1.5 s at most: fewer rounds where each takes long.
                    count_of_rounds = min(rounds, max(20, int(1.5 / predicted_s)))
                    spent = cluster.measure(case.collective, case.payload_bytes, count_of_rounds, case.wire)
                    sample = {
                        "seconds": statistics.median(spent),
                        "predicted_s": predicted_s,
                        "rounds": count_of_rounds,
                    }
                    found.setdefault((setting, case), []).append(sample)
    return [_result(testbed, count, *key, samples) for key, samples in found.items()]


def _predicted_s(case: _Case, facts: NetworkFacts) -> float:
    elements = case.payload_bytes // 4
    prediction = predict(case.collective, wire_bytes(case.wire, 1, elements), facts)
    assert prediction is not None  # all are linked
    return prediction


def _result(
    testbed: RunningTestbed | None,
    count: int,
    setting: LinkSetting,
    case: _Case,
    samples: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    latency_s, rate = setting.over(testbed)
    return {
        "testbed": testbed.name if testbed else None,
        "latency_s": latency_s,
        "rate_bytes_per_s": rate,
        "nodes": count,
        "bytes": case.payload_bytes,
        "collective": case.collective,
        "wire": case.wire,
        "seconds": spread([sample["seconds"] for sample in samples]),
        "predicted_s": statistics.median(sample["predicted_s"] for sample in samples),
        "rounds": min(sample["rounds"] for sample in samples),
    }


def _print(results: Sequence[dict[str, Any]]) -> None:
    rows = [
        [
            str(item["nodes"]),
            "-" if item["latency_s"] is None else f"{1e3 * item['latency_s']:g}",
            "-" if item["rate_bytes_per_s"] is None else f"{8e-6 * item['rate_bytes_per_s']:g}",
            format_bytes(item["bytes"]),
            item["wire"],
            item["collective"],
            milliseconds(item["seconds"], 3),
            f"{1e3 * item['predicted_s']:.3f}",
        ]
        for item in results
    ]
    columns = ["nodes", "latency ms", "Mbit/s", "payload", "wire", "collective"]
    print_table([*columns, "ms per all-reduce (median of medians, min-max)", "model"], rows)
