"""The command `tpiedge testbed`."""

import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import click

from tpiedge.cli.listing import ListingGroup, json_option, print_table
from tpiedge.cli.model_names import RUNNING_TESTBED, TESTBED
from tpiedge.cli.options import Parsed
from tpiedge.errors import UserError
from tpiedge.lab.testbed import testbed as namespaces
from tpiedge.lab.testbed.containers import AttachedContainers, DockerTestbeds, in_containers
from tpiedge.lab.testbed.description import (
    Link,
    check_name,
    format_part,
    format_rate,
    format_time,
    load_scenario,
    parse_part,
    parse_rate,
    parse_time,
    shipped_scenarios,
)
from tpiedge.lab.testbed.docker_engine import DEFAULT_IMAGE, ContainerEngine
from tpiedge.lab.testbed.measuring import Measured, expected_payload, expected_rtt_s
from tpiedge.lab.testbed.running import RunningTestbed, attach, status_of
from tpiedge.lab.testbed.state import read_state
from tpiedge.progress import say
from tpiedge.units import format_bytes


class NamespaceTestbeds:
    """Testbeds of namespaces, which need Linux and root."""

    up = staticmethod(namespaces.up)
    down = staticmethod(namespaces.down)
    change_link = staticmethod(namespaces.change_link)
    attach = staticmethod(attach)

    @property
    def may_look(self) -> bool:
        return os.geteuid() == 0

    def names(self) -> list[str]:
        return namespaces.known_names() if sys.platform == "linux" else []

    def status(self, name: str) -> dict[str, Any] | None:
        made = read_state(name)
        return None if made is None else status_of(made)


Backend = NamespaceTestbeds | DockerTestbeds
Attached = RunningTestbed | AttachedContainers
"""A running testbed. Common members: `name`, `device_names`, `expected`, `measure`, `execute`."""


def every_backend() -> tuple[Backend, ...]:
    try:
        return NamespaceTestbeds(), DockerTestbeds(ContainerEngine(), DEFAULT_IMAGE)
    except UserError:
        return (NamespaceTestbeds(),)


def backend_of(name: str) -> Backend:
    """Returns the backend that has the testbed, or else the backend of namespaces."""
    first = NamespaceTestbeds()
    if name in first.names():
        return first
    return next((backend for backend in every_backend() if name in backend.names()), first)


def require_free(name: str, chosen: Backend) -> None:
    """Raises UserError if a backend other than `chosen` has a testbed of this name."""
    of_containers = isinstance(chosen, DockerTestbeds)
    if name in NamespaceTestbeds().names() if of_containers else in_containers(name):
        raise UserError(f"the testbed {name} is up already, another way: tpiedge testbed down {name} ends it")


_DEVICES = ("device", "address", "cpus", "memory", "peak", "limit", "processes")
_LINKS = ("link", "latency", "jitter", "loss", "rate", "packets", "bytes", "dropped", "lost")
_CHECK = ("pair", "RTT", "ping", "should be", "off", "throughput", "should be", "off", "lost")


def print_status(record: dict[str, Any]) -> None:
    owner = f", belongs to process {record['owner_pid']}" if record["owner_pid"] else ""
    kind = "containers" if record["backend"] == "docker" else "namespaces"
    click.echo(f"{record['name']}: {record['state']}, of {kind}{owner}\n")
    print_table(_DEVICES, [_device_row(device) for device in record["devices"]])
    click.echo()
    print_table(_LINKS, [_link_row(link) for link in record["links"]])
    click.echo("\nexpected one-way latency and rate, from the row to the column:")
    _print_matrix(record)


def print_check(testbed: Attached, measured: Sequence[Measured], as_json: bool) -> None:
    records = [_check_record(testbed, item) for item in measured]
    if as_json:
        click.echo(json.dumps({"name": testbed.name, "pairs": records}))
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


def _rate(text: str) -> float:
    return math.inf if text == "none" else parse_rate(text)


def _loss(text: str) -> float:
    return parse_part(text, greatest=1.0)  # 100 % cuts the link


@click.group(cls=ListingGroup)
def testbed() -> None:
    """Emulate several devices on this computer: networks, processors and memory. Needs Linux and root, or docker."""


@testbed.command("up")
@click.argument("given", metavar="FILE_OR_NAME", type=TESTBED)
@click.option("--name", help="Name of the testbed.  [default: the file's]")
@click.option(
    "--backend",
    type=click.Choice(["namespaces", "docker"]),
    default="namespaces",
    show_default=True,
    help="Make devices of namespaces and control groups on this computer, or of containers.",
)
@click.option("--image", help=f"Image of containers.  [default: {DEFAULT_IMAGE}]")
def bring_up(given: str, name: str | None, backend: str, image: str | None) -> None:
    """Bring up the testbed of a file (./home.toml), or a built-in one (see 'tpiedge testbed ls')."""
    scenario = load_scenario(given, name)
    chosen = _chosen_backend(backend, image)
    require_free(scenario.name, chosen)
    chosen.up(scenario, say)
    first = scenario.description.devices[0].name
    say(f"{scenario.name} is up: tpiedge testbed exec {scenario.name} {first} -- COMMAND")


@testbed.command("down")
@click.argument("name", required=False, type=RUNNING_TESTBED)
@click.option("--all", "everything", is_flag=True, help="Remove all testbeds and all leftovers.")
def take_down(name: str | None, everything: bool) -> None:
    """Remove a testbed and end all its processes. Also removes what a killed command left."""
    if (name is not None) == everything:
        raise UserError("name a testbed, or say --all")
    for backend in every_backend() if name is None else (backend_of(_plain(name)),):
        for each in backend.names() if name is None else [_plain(name)]:
            say(f"{each} is down" if backend.down(each) else f"there is no testbed {each}")


@testbed.command()
@click.argument("name", required=False, type=RUNNING_TESTBED)
@json_option
def status(name: str | None, as_json: bool) -> None:
    """Show devices, links, and the expected latency and rate of each pair, for one testbed or all."""
    found: list[dict[str, Any]] = []
    names: list[str] = []
    for backend in every_backend() if name is None else (backend_of(_plain(name)),):
        known = backend.names() if name is None else [_plain(name)]
        found += [record for each in known if (record := backend.status(each)) is not None]
        names += known
    if name is not None and not found:
        raise UserError(f"the testbed {name} is not up: tpiedge testbed up {name}")
    if as_json:
        click.echo(json.dumps(found[0] if name is not None else {"testbeds": found}))
        return
    if not found:
        say("no testbed is up")
    for record in found:
        print_status(record)
    for left in set(names) - {record["name"] for record in found}:
        say(f"something is left of {left}: tpiedge testbed down {left}")


@testbed.command("exec")
@click.argument("name", type=RUNNING_TESTBED)
@click.argument("device", metavar="NODE")
@click.argument("command", nargs=-1, required=True)
def execute(name: str, device: str, command: tuple[str, ...]) -> NoReturn:
    """Run COMMAND on the device NODE: tpiedge testbed exec pair device1 -- ping 10.77.0.2"""
    sys.exit(backend_of(_plain(name)).attach(_plain(name)).execute(device, command))


@testbed.command()
@json_option
def ls(as_json: bool) -> None:
    """List the built-in testbeds, and the testbeds that are up."""
    shipped = {name: load_scenario(name).description for name in shipped_scenarios()}
    seen = [
        backend.status(name) for backend in every_backend() for name in backend.names() if backend.may_look
    ]
    running = [record for record in seen if record is not None]
    if as_json:
        records = [
            {"name": name, "about": found.about, "devices": len(found.devices)}
            for name, found in shipped.items()
        ]
        click.echo(json.dumps({"shipped": records, "up": running}))
        return
    for name, found in shipped.items():
        click.echo(f"{name:<16}{found.about}")
    for record in running:
        say(f"{record['name']}: {record['state']}")


@testbed.command()
@click.argument("name", type=RUNNING_TESTBED)
@click.argument("member", metavar="DEVICE_OR_ROUTER")
@click.option("--latency", type=Parsed("TIME", parse_time), help="One-way latency, like 2ms.")
@click.option("--jitter", type=Parsed("TIME", parse_time), help="Largest random latency to add, like 1ms.")
@click.option("--loss", type=Parsed("PART", _loss), help="Part of lost packets, like 1%; 100% cuts the link.")
@click.option("--rate", type=Parsed("RATE", _rate), help="Rate, like 300Mbit/s; none means no limit.")
@click.option("--up", "only_up", is_flag=True, help="Change only the direction to the uplink.")
@click.option("--down", "only_down", is_flag=True, help="Change only the direction from the uplink.")
def link(
    name: str,
    member: str,
    latency: float | None,
    jitter: float | None,
    loss: float | None,
    rate: float | None,
    only_up: bool,
    only_down: bool,
) -> None:
    """Change the link between a device or router and its uplink, in both directions by default."""
    if only_up and only_down:
        raise UserError("give --up or --down, or neither for both directions")
    values = {"latency_s": latency, "jitter_s": jitter, "loss": loss, "bytes_per_s": rate}
    changed = _changer({key: value for key, value in values.items() if value is not None}, only_up, only_down)
    backend_of(_plain(name)).change_link(_plain(name), member, changed)


@testbed.command()
@click.argument("name", type=RUNNING_TESTBED)
@click.option("--all", "everything", is_flag=True, help="Measure every pair, not only the first device's.")
@json_option
def check(name: str, everything: bool, as_json: bool) -> None:
    """Measure round trips and throughput between devices and compare them with the links' settings."""
    found = backend_of(_plain(name)).attach(_plain(name))
    measured = []
    for source, target in itertools.permutations(found.device_names, 2):
        if everything or source == found.device_names[0]:
            say(f"measuring {source} -> {target} ...")
            measured.append(found.measure(source, target))
    print_check(found, measured, as_json)


def _changer(
    given: dict[str, float], only_up: bool, only_down: bool
) -> Callable[[Link, Link], tuple[Link, Link]]:
    if not given:
        raise UserError("say what to change: --latency, --jitter, --loss or --rate")
    changes: dict[str, Any] = {key: None if value == math.inf else value for key, value in given.items()}

    def changed(up_link: Link, down_link: Link) -> tuple[Link, Link]:
        return (
            up_link if only_down else replace(up_link, **changes),
            down_link if only_up else replace(down_link, **changes),
        )

    return changed


def _chosen_backend(kind: str, image: str | None) -> Backend:
    if kind == "docker":
        return DockerTestbeds(ContainerEngine(), image or DEFAULT_IMAGE)
    if image is not None:
        raise UserError("--image is for containers: add --backend docker")
    return NamespaceTestbeds()


def _plain(name: str) -> str:
    is_file = "/" in name or name.endswith(".toml")
    return load_scenario(name).name if is_file else check_name(name, "a testbed")
