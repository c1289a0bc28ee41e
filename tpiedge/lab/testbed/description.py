"""What a testbed is: a tree of routers, devices at its leaves, and the link of each to its uplink. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tpiedge.errors import UserError

_MAX_DEVICES = 64
_MAX_ROUTERS = 128
#: Linux names of network interfaces have at most 15 bytes.
_NAME = re.compile(r"[a-z](?:[a-z0-9_-]{0,13}[a-z0-9])?", re.ASCII)
_TAKEN = ("lo", "all", "default", "uplink")


@dataclass(frozen=True, slots=True)
class Link:
    """One direction. One-way `latency_s`, to which up to `jitter_s` is added; `loss`: the part of packets that vanish;
    None: no limit of the rate."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Router:
    """`uplink` is None for the root, whose links say nothing. `up` leads towards the uplink."""

    name: str
    uplink: str | None
    up: Link
    down: Link


@dataclass(frozen=True, slots=True)
class Device:
    """None: no limit. `swap_bytes` is allowed beyond `memory_bytes`."""

    name: str
    uplink: str
    up: Link
    down: Link
    cpus: float | None = None
    memory_bytes: int | None = None
    swap_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Description:
    """A whole testbed; devices in the order of the file, which is that of the ranks."""

    about: str
    routers: tuple[Router, ...]
    devices: tuple[Device, ...]

    @property
    def members(self) -> tuple[Router | Device, ...]:
        return (*self.routers, *self.devices)

    def device(self, name: str) -> Device:
        """Raises UserError that lists the names."""
        found = next((device for device in self.devices if device.name == name), None)
        if found is None:
            names = ", ".join(device.name for device in self.devices)
            raise UserError(f"the testbed has no device {name[:40]!r}: it has {names}")
        return found


def check_name(name: str, what: str) -> str:
    """Fit for files, interfaces and control groups. Raises UserError."""
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise UserError(
            f"{name[:40]!r} is no name for {what}: 1 to 15 of a-z, 0-9, '-' and '_', beginning with a letter"
        )
    return name


def check_tree(description: Description) -> None:
    """Raises UserError where it is none, or too large."""
    _check_counts(description)
    routers: dict[str, Router] = {}
    names: set[str] = set()
    for member in description.members:
        if member.name in names:
            raise UserError(f"there are two members of the name {member.name}")
        names.add(member.name)
        if isinstance(member, Router):
            routers[member.name] = member
    for member in description.members:
        if member.uplink is not None and member.uplink not in routers:
            raise UserError(
                f"[[{_kind(member)}]] {member.name}: uplink: there is no router {member.uplink[:40]!r}"
            )
    roots = [router.name for router in description.routers if router.uplink is None]
    for router in description.routers:
        _check_ascent(router, routers)
    if len(roots) != 1:
        raise UserError(f"exactly one router may be without uplink, the root: here {', '.join(roots)} are")


def _check_counts(description: Description) -> None:
    if not description.devices:
        raise UserError("it has no device: add [[device]] tables")
    if not description.routers:
        raise UserError("it has no router: add [[router]] tables, one of them without uplink")
    if len(description.devices) > _MAX_DEVICES or len(description.routers) > _MAX_ROUTERS:
        raise UserError(f"it is too large: at most {_MAX_DEVICES} devices and {_MAX_ROUTERS} routers")


def _check_ascent(router: Router, routers: Mapping[str, Router]) -> None:
    seen = [router.name]
    while router.uplink is not None:
        router = routers[router.uplink]
        seen.append(router.name)
        if router.name in seen[:-1]:
            raise UserError(f"[[router]] {seen[0]}: uplink: it leads in a circle: {' -> '.join(seen[:20])}")


def _kind(member: Router | Device) -> str:
    return "router" if isinstance(member, Router) else "device"
