"""`tpiedge testbed`: several devices emulated on this computer, with links between them."""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import click

from tpiedge.cli.testbed_report import print_check, print_status
from tpiedge.errors import UserError
from tpiedge.testbed.description import Link, check_name
from tpiedge.testbed.measuring import Measured, measure_pair
from tpiedge.testbed.quantities import parse_part, parse_rate, parse_time
from tpiedge.testbed.running import RunningTestbed, attach
from tpiedge.testbed.scenarios import load_scenario, shipped_scenarios
from tpiedge.testbed.state import Network, read_state
from tpiedge.testbed.status import status_of
from tpiedge.testbed.testbed import change_link, down, known_names, up

__all__ = ["network_option", "testbed"]

_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on standard output."
)

network_option = click.option(
    "--network",
    type=click.Choice(["auto", "netem", "switch"]),
    default="auto",
    show_default=True,
    help="Links by the kernel's netem, or by tpiedge's own switch where the kernel has none.",
)


class _Quantity(click.ParamType[float]):
    """As in a description: "0.25 ms"."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else self._parse(str(value))
        except UserError as error:
            self.fail(str(error), param, ctx)


@click.group()
def testbed() -> None:
    """Emulate several devices on this computer: their networks, processors and memory. Linux, needs root."""


@testbed.command("up")
@click.argument("given", metavar="FILE_OR_NAME")
@click.option("--name", help="Of the testbed.  [default: that of the file]")
@network_option
def bring_up(given: str, name: str | None, network: str) -> None:
    """Bring up the testbed of a file (./home.toml), or one that comes along (see 'tpiedge testbed ls')."""
    scenario = load_scenario(given, name)
    made = up(scenario, chosen_network(network), say)
    say(
        f"{made.name} is up: tpiedge testbed exec {made.name} {scenario.description.devices[0].name} -- COMMAND"
    )


@testbed.command("down")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="All testbeds, and all that is left of any.")
def take_down(name: str | None, everything: bool) -> None:
    """End all processes in a testbed and remove it, also what a command that was killed left of one."""
    if (name is not None) == everything:
        raise UserError("name a testbed, or say --all")
    for each in known_names() if name is None else [_plain(name)]:
        say(f"{each} is down" if down(each) else f"there is no testbed {each}")


@testbed.command()
@click.argument("name", required=False)
@_json_option
def status(name: str | None, as_json: bool) -> None:
    """Show devices, links and what each pair of devices should have, of one testbed or of all."""
    names = known_names() if name is None else [_plain(name)]
    found = [status_of(made) for each in names if (made := read_state(each)) is not None]
    if name is not None and not found:
        raise UserError(f"the testbed {name} is not up: tpiedge testbed up {name}")
    if as_json:
        click.echo(json.dumps(found[0] if name is not None else {"testbeds": found}))
        return
    if not found:
        click.echo("no testbed is up", err=True)
    for record in found:
        print_status(record)


@testbed.command("exec")
@click.argument("name")
@click.argument("device", metavar="NODE")
@click.argument("command", nargs=-1, required=True)
def execute(name: str, device: str, command: tuple[str, ...]) -> NoReturn:
    """Run COMMAND on the device NODE: tpiedge testbed exec pair device1 -- ping 10.77.0.2"""
    where = attach(_plain(name)).device(device)
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (signal.SIGTSTP, signal.SIGPIPE):  # the command's own business
        signal.signal(number, signal.SIG_DFL)
    words = [*where.enter_command, *command]
    os.execv(words[0], words)


@testbed.command()
@_json_option
def ls(as_json: bool) -> None:
    """List the testbeds that come along, and those that are up."""
    shipped = {name: load_scenario(name).description for name in shipped_scenarios()}
    running = {name: made for name in known_names() if (made := read_state(name)) is not None}
    if as_json:
        records = [
            {"name": name, "about": found.about, "devices": len(found.devices)}
            for name, found in shipped.items()
        ]
        click.echo(json.dumps({"shipped": records, "up": [status_of(made) for made in running.values()]}))
        return
    for name, found in shipped.items():
        click.echo(f"{name:<16}{found.about}")
    for name, made in running.items():
        click.echo(f"{name}: {status_of(made)['state']}", err=True)


@testbed.command()
@click.argument("name")
@click.argument("member", metavar="DEVICE_OR_ROUTER")
@click.option("--latency", type=_Quantity("TIME", parse_time), help="One way, like 2ms.")
@click.option("--jitter", type=_Quantity("TIME", parse_time), help="At most so much is added.")
@click.option("--loss", type=_Quantity("PART", parse_part), help="Of all packets, like 1%.")
@click.option("--rate", type=_Quantity("RATE", parse_rate), help="Like 300Mbit/s.")
@click.option("--up", "only_up", is_flag=True, help="Only towards the uplink.")
@click.option("--down", "only_down", is_flag=True, help="Only from the uplink.")
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
    """Change the link of a device or router to its uplink while it runs, in both directions unless told."""
    values = {"latency_s": latency, "jitter_s": jitter, "loss": loss, "bytes_per_s": rate}
    changes: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
    if not changes:
        raise UserError("say what to change: --latency, --jitter, --loss or --rate")

    def changed(up_link: Link, down_link: Link) -> tuple[Link, Link]:
        return (
            up_link if only_down else replace(up_link, **changes),
            down_link if only_up else replace(down_link, **changes),
        )

    if only_up and only_down:
        raise UserError("give --up or --down, or neither for both directions")
    change_link(_plain(name), member, changed)


@testbed.command()
@click.argument("name")
@click.option("--all", "everything", is_flag=True, help="Every pair, not only those of the first device.")
@_json_option
def check(name: str, everything: bool, as_json: bool) -> None:
    """Measure round trips and throughput between devices and compare them with what the file says."""
    found = attach(_plain(name))
    measured = [measured_pair(found, *pair) for pair in _pairs(found, everything)]
    print_check(found, measured, as_json)


def measured_pair(found: RunningTestbed, source: int, target: int) -> Measured:
    first, second = found.devices[source], found.devices[target]
    say(f"measuring {first.name} -> {second.name} ...")
    return measure_pair(found, first, second)


def chosen_network(network: str) -> Network | None:
    """None: whatever is best."""
    return None if network == "auto" else "netem" if network == "netem" else "switch"


def say(line: str) -> None:
    """Progress, on standard error."""
    click.echo(line, err=True)


def _pairs(found: RunningTestbed, everything: bool) -> list[tuple[int, int]]:
    count = len(found.devices)
    return [
        (a, b)
        for a in range(count if everything else 1)
        for b in range(count)
        if a != b and (everything or b > a)
    ]


def _plain(name: str) -> str:
    """The name of a testbed, also where its file is given."""
    is_file = "/" in name or name.endswith(".toml")
    return load_scenario(name).name if is_file else check_name(name, "a testbed")
