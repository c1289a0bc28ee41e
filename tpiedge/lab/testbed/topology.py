"""Computes paths between a testbed's devices and their expected quality. Pure."""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tpiedge.errors import UserError
from tpiedge.lab.testbed.description import Description, Device, Link, NetworkRouter
from tpiedge.lab.testbed.switch import Port, SwitchLink, SwitchPlan


@dataclass(frozen=True, slots=True)
class Expected:
    """A path between two devices. Up to `jitter_s` is added at random. `bytes_per_s`: None means no limit."""

    latency_s: float
    jitter_s: float
    loss: float
    bytes_per_s: float | None

    @staticmethod
    def along(links: Iterable[Link]) -> "Expected":
        links = tuple(links)
        rates = [link.bytes_per_s for link in links if link.bytes_per_s is not None]
        return Expected(
            math.fsum(link.latency_s for link in links),
            math.fsum(link.jitter_s for link in links),
            1 - math.prod(1 - link.loss for link in links),
            min(rates, default=None),
        )


class Topology:
    def __init__(self, description: Description) -> None:
        self.description = description
        self.members: Mapping[str, NetworkRouter | Device] = {
            member.name: member for member in description.members
        }
        self.addresses = _addresses(description)

    def with_links(self, name: str, up: Link, down: Link) -> "Topology":
        """Returns a topology in which the member `name` has these links."""
        known = self.description
        routers = (replace(one, up=up, down=down) if one.name == name else one for one in known.routers)
        devices = (replace(one, up=up, down=down) if one.name == name else one for one in known.devices)
        return Topology(replace(known, routers=tuple(routers), devices=tuple(devices)))

    def ascent(self, name: str) -> tuple[str, ...]:
        """Returns the members from `name` to the root, both included."""
        passed = [name]
        while (uplink := self.members[passed[-1]].uplink) is not None:
            passed.append(uplink)
        return tuple(passed)

    def path(self, source: str, target: str) -> tuple[tuple[str, str], ...]:
        """Returns the links of the path in order, as (member, "up" or "down")."""
        climb, descent = self.ascent(source), self.ascent(target)
        meeting = next(name for name in climb if name in descent)
        ups = itertools.takewhile(lambda name: name != meeting, climb)
        downs = reversed(descent[: descent.index(meeting)])
        return (*((name, "up") for name in ups), *((name, "down") for name in downs))

    def link(self, name: str, way: str) -> Link:
        member = self.members[name]
        return member.up if way == "up" else member.down

    def expected(self, source: str, target: str) -> Expected:
        return Expected.along(self.link(name, way) for name, way in self.path(source, target))

    def expected_pairs(self) -> dict[tuple[str, str], Expected]:
        names = [device.name for device in self.description.devices]
        return {pair: self.expected(*pair) for pair in itertools.permutations(names, 2)}

    def switch_plan(self, namespaces: Mapping[str, Path]) -> SwitchPlan:
        """Returns the switch's plan. Link names are like "laptop up"."""
        wired = [member for member in self.description.members if member.uplink is not None]
        keys = [(member.name, way) for member in wired for way in ("up", "down")]
        numbers = {key: number for number, key in enumerate(keys)}
        names = [device.name for device in self.description.devices]
        return SwitchPlan(
            tuple(Port(name, str(namespaces[name]), self.addresses[name]) for name in names),
            tuple(SwitchLink(f"{name} {way}", **_settings(self.link(name, way))) for name, way in keys),
            {
                source: {
                    target: tuple(numbers[key] for key in self.path(source, target))
                    for target in names
                    if target != source
                }
                for source in names
            },
        )

    def switch_changes(self, name: str) -> dict[str, dict[str, float | None]]:
        """Returns both directions of the member's link, for SwitchClient.set_links."""
        return {f"{name} {way}": _settings(self.link(name, way)) for way in ("up", "down")}

    def wired(self, name: str, testbed: str) -> NetworkRouter | Device:
        """Returns the member `name`. Raises UserError unless it has a link."""
        found = self.members.get(name)
        if found is None or found.uplink is None:
            wired = [member.name for member in self.description.members if member.uplink is not None]
            raise UserError(f"{name[:40]!r} has no link in the testbed {testbed}: choose {', '.join(wired)}")
        return found


def links_of(topology: Topology, counted: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns records of both directions of all links. `counted`: counters by link names like "laptop up"."""
    return [
        {"member": member.name, "uplink": member.uplink, "way": way}
        | asdict(topology.link(member.name, way))
        | {"counters": counted.get(f"{member.name} {way}")}
        for member in topology.description.members
        if member.uplink is not None
        for way in ("up", "down")
    ]


def pairs_of(topology: Topology) -> list[dict[str, Any]]:
    return [
        {"from": source, "to": target} | asdict(expected)
        for (source, target), expected in topology.expected_pairs().items()
    ]


def device_record(device: Device, address: str, use: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the device's record in `status`. `use`: fields of GroupUse."""
    return {
        "name": device.name,
        "address": address,
        "cpus": device.cpus,
        "memory_limit_bytes": use.get("limit_bytes"),
        "swap_bytes": device.swap_bytes,
        "memory_used_bytes": use.get("used_bytes"),
        "memory_peak_bytes": use.get("peak_bytes"),
        "oom_kills": use.get("oom_kills", 0),
    }


def _settings(link: Link) -> dict[str, Any]:
    least, most = 1 << 18, 1 << 22
    wanted = most if link.bytes_per_s is None else int(link.bytes_per_s / 20)  # 50 ms
    return asdict(link) | {"queue_bytes": max(least, min(wanted, most))}


def _addresses(description: Description) -> dict[str, str]:
    devices = {device.name: f"10.77.0.{number}" for number, device in enumerate(description.devices, 1)}
    return devices | {
        router.name: f"10.77.1.{number}" for number, router in enumerate(description.routers, 1)
    }
