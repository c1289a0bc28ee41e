"""What a testbed is and does at the moment, as one record for people and programs. Linux."""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tpiedge.errors import TpiedgeError
from tpiedge.lab.testbed import forwarding
from tpiedge.lab.testbed.description import Device
from tpiedge.lab.testbed.groups import Controllers, processors
from tpiedge.lab.testbed.state import TestbedState, prefix_of, socket_of
from tpiedge.lab.testbed.switch.client import SwitchClient
from tpiedge.lab.testbed.testbed import members, namespaces_of
from tpiedge.lab.testbed.topology import Topology


def status_of(made: TestbedState) -> dict[str, Any]:
    """`backend`: namespaces, or docker, whose record has the same keys but `container` for `namespace` and no
    `totals`. `state` is one of: up; starting; abandoned (a command that was to end it was killed, or the computer
    restarted); broken (its switch has ended)."""
    topology = made.topology
    switch_pids = sorted(forwarding.switches(made.name))
    return {
        "backend": "namespaces",
        "name": made.name,
        "state": _state(made, switch_pids),
        "network": made.network,
        "switch_pids": switch_pids,
        "owner_pid": made.owner.pid if made.owner else None,
        "devices": [_device(made, topology, device) for device in topology.description.devices],
        "links": links_of(topology, _counters(made)),
        "pairs": pairs_of(topology),
        "totals": _totals(made),
    }


def links_of(topology: Topology, counted: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Both directions of every link; `counted` by "laptop up", for those that something is known of."""
    return [
        {"member": member.name, "uplink": member.uplink, "way": way}
        | asdict(topology.link(member.name, way))
        | {"counters": counted.get(f"{member.name} {way}")}
        for member in topology.description.members
        if member.uplink is not None
        for way in ("up", "down")
    ]


def pairs_of(topology: Topology) -> list[dict[str, Any]]:
    """What every way between two devices should give."""
    return [
        {"from": source, "to": target} | asdict(expected)
        for (source, target), expected in topology.expected_pairs().items()
    ]


def _state(made: TestbedState, switch_pids: list[int]) -> str:
    if made.abandoned:
        return "abandoned"
    if not made.ready:
        return "starting"
    return "up" if switch_pids or made.network == "netem" else "broken"


def _device(made: TestbedState, topology: Topology, device: Device) -> dict[str, Any]:
    namespace = namespaces_of(made)[device.name]
    use = Controllers.here().use(f"{prefix_of(made.name)}{device.name}")
    return {
        "name": device.name,
        "address": topology.addresses[device.name],
        "namespace": namespace.name,
        "there": namespace.exists(),
        "cpus": device.cpus,
        "cpus_limited": device.cpus is not None and device.cpus < processors(),
        "memory_limit_bytes": use.limit_bytes,
        "swap_bytes": device.swap_bytes,
        "memory_used_bytes": use.used_bytes,
        "memory_peak_bytes": use.peak_bytes,
        "oom_kills": use.oom_kills,
        "processes": sorted(members(made.name, device.name)),
    }


def _counters(made: TestbedState) -> dict[str, dict[str, Any]]:
    """None of a switch that has ended."""
    with contextlib.suppress(TpiedgeError, OSError):
        return forwarding.counters(made, namespaces_of(made))
    return {}


def _totals(made: TestbedState) -> dict[str, int] | None:
    """TOTALS of switch/library.py; None where no switch answers."""
    if made.network == "switch":
        with contextlib.suppress(TpiedgeError, OSError):
            return dict(SwitchClient(socket_of(made.name)).counters()["totals"])
    return None
