"""`tpiedge doctor` shows the result of every check, and what to do."""

import json
import sys
from collections.abc import Mapping
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import get_args

import click
from platformdirs import user_cache_path

from tpiedge.cli.listing import json_option
from tpiedge.cli.options import cache_option
from tpiedge.doctor import computer, network
from tpiedge.doctor.computer import Check, CheckResult
from tpiedge.errors import ResourceError
from tpiedge.host.addresses import CONTROL_PORT, parse_address
from tpiedge.progress import say

_LIMIT_S = 9.0


@click.command()
@click.option("--connect", metavar="HOST[:PORT]", help="Also check the connection to this master.")
@json_option
@cache_option
def doctor(connect: str | None, as_json: bool, cache: Path | None) -> None:
    if sys.stderr.isatty():
        say(f"checking, for at most {_LIMIT_S:g} s ...")
    findings = computer.examine(_checks(connect, cache or user_cache_path("tpiedge")), _LIMIT_S)
    if as_json:
        worst = max((finding.result for finding in findings), key=get_args(CheckResult).index)
        keys = ("check", "found", "advice", "verdict")  # in the order of Finding's fields
        rows = [dict(zip(keys, astuple(finding), strict=True)) for finding in findings]
        click.echo(json.dumps({"verdict": worst, "findings": rows}))
    else:
        width = max(len(finding.check) for finding in findings)
        for finding in findings:
            click.echo(f"{finding.result:<4}  {finding.check:<{width}}  {finding.found}")
            if finding.advice:
                click.echo(f"{'':<4}  {'':<{width}}  -> {finding.advice}")
    failed = [finding.check for finding in findings if finding.result == "fail"]
    if failed:
        raise ResourceError(f"tpiedge cannot work here as it is: {', '.join(failed)}")


def _checks(connect: str | None, cache: Path) -> Mapping[str, Check]:
    checks: dict[str, Check] = {
        "python": computer.check_python,
        "encryption": computer.check_links,
        "torch": partial(computer.check_arithmetic, 8.0),
        "processor": computer.check_processor,
        "memory": computer.check_memory,
        "disk": partial(computer.check_disk, cache),
        "clock": computer.check_clock,
        "ports": network.check_ports,
        "firewall": network.check_firewall,
        "addresses": network.check_addresses,
        "MTU": network.check_mtu,
    }
    if connect is not None:
        master = parse_address(connect, CONTROL_PORT)
        checks |= {
            "master": partial(network.check_reach, master),
            "large packets": partial(network.check_large_packets, master),
            "master's clock": partial(network.check_master_clock, master.host),
        }
    return checks
