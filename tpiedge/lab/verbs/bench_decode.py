"""The command `tpiedge bench decode`."""

import itertools
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click

from tpiedge.cli.listing import json_option, print_table
from tpiedge.cli.model_names import model_option
from tpiedge.cli.options import arithmetic_options, cache_option, kv_option
from tpiedge.errors import UserError
from tpiedge.lab.bench.figures import (
    Dial,
    LinkSetting,
    ask,
    check_devices,
    check_lengths,
    check_names,
    link_settings,
    milliseconds,
    spread,
)
from tpiedge.lab.testbed.running import RunningTestbed, emulated, open_testbed
from tpiedge.lab.verbs.flags import repeats_option, testbed_option, varied_links, wires_option
from tpiedge.launch.child import Place
from tpiedge.local.cluster import launch
from tpiedge.local.layout import Devices, Layout, plan_cluster
from tpiedge.local.prepare import PreparedModel, prepare
from tpiedge.progress import say
from tpiedge.units import format_bytes
from tpiedge.wire.control import Stats
from tpiedge.wire.fields import CollectiveChoice, Compute, KVPrecision, WirePrecision


@dataclass(frozen=True)
class _Setting:
    nodes: int
    threads: int
    collective: CollectiveChoice
    wire: WirePrecision
    links: LinkSetting

    def __str__(self) -> str:
        collective = "" if self.collective == "auto" else self.collective
        wire = "" if self.wire == "f32" else f"wire {self.wire}"
        return ", ".join(filter(None, (f"{self.nodes}x{self.threads}", collective, wire, str(self.links))))

    def layout(self, testbed: Devices | None) -> Layout:
        layout = Layout(
            self.nodes, None, self.threads, None, testbed=testbed, collective=self.collective, wire=self.wire
        )
        layout.check()
        return layout


@dataclass(frozen=True)
class _Bench:
    model: PreparedModel
    prompt_tokens: int
    tokens: int
    described: Devices | None
    testbed: RunningTestbed | None

    def measure(self, setting: _Setting) -> dict[str, Any]:
        # All weights stay resident: with streaming, "layers_s_per_token" would lack the head's waits.
        layout, capacity = setting.layout(self.described), self.prompt_tokens + self.tokens
        plan = plan_cluster(self.model, layout, capacity)
        with ExitStack() as stack:
            places: tuple[Place, ...] = ()
            if self.testbed is not None:
                stack.enter_context(Dial(self.testbed).turned(setting.links))
                places = tuple(device.place for device in self.testbed.devices[: setting.nodes])
            cluster = stack.enter_context(launch(self.model, layout, plan, capacity, places=places))
            ask(cluster, self.model, self.prompt_tokens, 2, keep=False)
            prefill = ask(cluster, self.model, self.prompt_tokens, 1, keep=False)
            before = cluster.stats()
            decode = ask(cluster, self.model, self.prompt_tokens, self.tokens, keep=True)
            after = cluster.stats()
            routing = cluster.routing
        s_per_token = decode.s_per_token or 0.0
        return {
            "prefill_tokens_per_s": self.prompt_tokens / prefill.ttft_s,
            "s_per_token": s_per_token,
            "chosen": routing.collective if routing else "",
            "chosen_bulk": routing.bulk_collective if routing else "",
        } | _counted(before, after, s_per_token)

    def describe(self, setting: _Setting) -> dict[str, Any]:
        latency_s, rate = setting.links.over(self.testbed)
        reduces = 2 * self.model.config.num_layers if setting.nodes > 1 else 0
        return {
            "nodes": setting.nodes,
            "threads": setting.threads,
            "collective": setting.collective,
            "wire": setting.wire,
            "latency_s": latency_s,
            "bytes_per_s": rate,
            "least_network_s_per_token": reduces * (latency_s or 0.0),
        }


@click.command()
@model_option
@click.option("--settings", default="1x2,2x1", show_default=True, help="NODESxTHREADS, a list.")
@click.option(
    "--collective", "names", default="auto", show_default=True, help="A list: auto,star,mesh,two-shot."
)
@wires_option
@testbed_option
@varied_links
@arithmetic_options
@kv_option
@click.option("--prompt-tokens", type=click.IntRange(1, 8192), default=64, show_default=True)
@click.option("--tokens", type=click.IntRange(2, 4096), default=24, show_default=True)
@repeats_option
@json_option
@cache_option
def decode(
    model_name: str,
    settings: str,
    names: str,
    wire: str,
    testbed_name: str | None,
    latency: str | None,
    rate: str | None,
    precision: str | None,
    compute: Compute | None,
    kv: KVPrecision | None,
    prompt_tokens: int,
    tokens: int,
    repeats: int,
    as_json: bool,
    cache: Path | None,
) -> None:
    """Measure prefill and decode speed of clusters of different sizes, and over different links of a testbed.

    Every repeat measures each combination once, in a new cluster. One request first warms up the cluster.
    """
    collectives: Sequence[Any] = names.split(",")
    wires: Sequence[Any] = wire.split(",")
    check_names("--collective", collectives, get_args(CollectiveChoice))
    check_names("--wire", wires, get_args(WirePrecision))
    links = link_settings(latency, rate, testbed_name)
    given = itertools.product(_sizes(settings), collectives, wires, links)
    wanted = list(dict.fromkeys(_Setting(nodes, threads, *rest) for (nodes, threads), *rest in given))
    most = max(setting.nodes for setting in wanted)
    described = None if testbed_name is None else emulated(testbed_name, most)
    for setting in wanted:
        setting.layout(described)  # refuses numbers out of range before the model is prepared
    if testbed_name is not None:
        check_devices(testbed_name, most)
    model = prepare(model_name, precision, compute, cache, kv)
    check_lengths(model, prompt_tokens, tokens)
    with ExitStack() as stack:
        testbed = None
        if testbed_name is not None:
            testbed = stack.enter_context(open_testbed(testbed_name, say=say))
            stack.enter_context(testbed.inside(testbed.devices[0]))
        measured = _Bench(model, prompt_tokens, tokens, described, testbed)
        record = {
            **model.described(),
            "prompt_tokens": prompt_tokens,
            "tokens": tokens,
            "repeats": repeats,
            "testbed": testbed.name if testbed else None,
            "settings": _run(measured, wanted, repeats),
        }
    if as_json:
        click.echo(json.dumps(record))
    else:
        _print(record)


def _run(measured: _Bench, wanted: Sequence[_Setting], repeats: int) -> dict[str, dict[str, Any]]:
    runs: dict[_Setting, list[dict[str, Any]]] = {setting: [] for setting in wanted}
    for repeat in range(repeats):
        for setting in wanted:
            say(f"repeat {repeat + 1} of {repeats}: {setting}")
            runs[setting].append(measured.measure(setting))
    return {str(one): measured.describe(one) | _summarise(samples) for one, samples in runs.items()}


def _counted(before: Sequence[Stats], after: Sequence[Stats], s_per_token: float) -> dict[str, Any]:
    steps = after[0].steps - before[0].steps

    def per_step(counter: str) -> list[float]:
        pairs = zip(before, after, strict=True)
        return [(getattr(end, counter) - getattr(start, counter)) / steps for start, end in pairs]

    head_s = per_step("head_s")[0]
    waits = per_step("reduce_wait_s")
    return {
        "head_s_per_token": head_s,
        "layers_s_per_token": s_per_token - head_s,
        # The wait of the node that waits the least: the others also wait for its arithmetic.
        "reduce_s_per_token": min(waits),
        "peak_rss_bytes": [node.peak_rss_bytes for node in after],
        "weight_bytes": [node.weight_bytes for node in after],
        "kv_bytes": [node.kv_bytes for node in after],
        "compute_s_per_token": per_step("compute_s"),
        "reduce_wait_s_per_token": waits,
    }


def _summarise(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for name, value in samples[-1].items():
        is_time = isinstance(value, float)
        summary[name] = spread([sample[name] for sample in samples]) if is_time else value
    return summary


def _print(record: dict[str, Any]) -> None:
    rows = [
        [
            name,
            found["chosen"] or "-",
            f"{found['prefill_tokens_per_s']['median']:.1f}",
            milliseconds(found["s_per_token"]),
            milliseconds(found["layers_s_per_token"]),
            milliseconds(found["head_s_per_token"]),
            milliseconds(found["reduce_s_per_token"]),
            f"{1e3 * found['least_network_s_per_token']:.1f}",
            format_bytes(max(found["peak_rss_bytes"])),
        ]
        for name, found in record["settings"].items()
    ]
    columns = ["nodes x threads", "collective", "prefill tok/s", "ms/token", "layers", "head"]
    print_table([*columns, "all-reduces", "least for the links", "peak memory"], rows)


def _sizes(text: str) -> list[tuple[int, int]]:
    try:
        return [
            (int(nodes), int(threads)) for nodes, threads in (item.split("x") for item in text.split(","))
        ]
    except ValueError:
        raise UserError(f"--settings {text!r}: write NODESxTHREADS, like 1x2,2x1") from None
