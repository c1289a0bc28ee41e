"""Which plans and which changes of links make sense. Pure. The native side relies on it."""

import ipaddress
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Final

from tpiedge.errors import UserError
from tpiedge.lab.testbed.switch.plan import Port, SwitchLink, SwitchPlan

_MAX_DELAY_S: Final = 60.0
# Of each setting of a link the least and the largest value.
_LIMITS: Final = {
    "latency_s": (0.0, _MAX_DELAY_S),
    "jitter_s": (0.0, _MAX_DELAY_S),
    "loss": (0.0, 1.0),
    "bytes_per_s": (1.0, 1e12),
    "queue_bytes": (0.0, 1e12),
}
_MAX_SEED: Final = (1 << 64) - 1
_MAX_PORTS: Final = 512
_MAC: Final = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}", re.IGNORECASE)
_INTERFACE: Final = re.compile(r"[^\s/:\x00]{1,15}")
# Least of IPv4, most of a TAP device.
_MTU: Final = range(68, 65522)


def check_plan(plan: SwitchPlan) -> None:
    """Raises UserError with the first thing that is wrong."""
    for fault in _faults(plan):
        raise UserError(f"the switch cannot follow its plan: {fault}")


def changed_links(links: dict[str, SwitchLink], wanted: object) -> list[SwitchLink]:
    """The links named in `wanted` with their new settings. Raises UserError where there is anything wrong."""
    if not isinstance(wanted, dict):
        raise UserError("'links' must be an object: the settings that change, by the name of the link")
    changed = []
    for name, settings in wanted.items():
        if name not in links:
            raise UserError(f"there is no link {name!r}; there are: {', '.join(links)}")
        if not isinstance(settings, dict):
            raise UserError(f"link {name!r}: the settings must be an object")
        for fault in _setting_faults(name, settings):
            raise UserError(fault)
        changed.append(replace(links[name], **settings))
    return changed


def _faults(plan: SwitchPlan) -> Iterator[str]:
    if not 0 < len(plan.ports) <= _MAX_PORTS:
        yield f"it has {len(plan.ports)} devices, not 1 to {_MAX_PORTS}"
    if not _is_whole(plan.seed) or not 0 <= plan.seed <= _MAX_SEED:
        yield f"the seed must be a whole number from 0 to 2^64 - 1, not {plan.seed!r}"
    for port in plan.ports:
        yield from _port_faults(port)
    for link in plan.links:
        if not _is_text(link.name):
            yield f"the name of a link must be text, not {link.name!r}"
        settings = asdict(link)
        yield from _setting_faults(settings.pop("name"), settings)
    yield from _twins("device", (port.device for port in plan.ports))
    yield from _twins("address", (port.address for port in plan.ports))
    yield from _twins("link", (link.name for link in plan.links))
    yield from _path_faults(plan)


def _port_faults(port: Port) -> Iterator[str]:
    names = (port.device, port.namespace, port.interface, port.address, port.mac)
    if not all(map(_is_text, names)):
        yield f"device {port.device!r}: device, namespace, interface, address and mac must be text"
        return
    if not _INTERFACE.fullmatch(port.interface):
        yield f"device {port.device!r}: {port.interface!r} is no name of an interface"
    if not _is_address(port.address):
        yield f"device {port.device!r}: {port.address!r} is no IPv4 address"
    if not _MAC.fullmatch(port.mac):
        yield f"device {port.device!r}: {port.mac!r} is no hardware address of one device, such as 02:00:00:00:00:01"
    if not _is_whole(port.prefix) or not 0 <= port.prefix <= 32:
        yield f"device {port.device!r}: the prefix must be a whole number from 0 to 32, not {port.prefix!r}"
    if not _is_whole(port.mtu) or port.mtu not in _MTU:
        yield f"device {port.device!r}: the mtu must be from {_MTU[0]} to {_MTU[-1]}, not {port.mtu!r}"


def _setting_faults(link: object, settings: dict[str, object]) -> Iterator[str]:
    for setting, value in settings.items():
        if setting not in _LIMITS:
            yield f"link {link!r}: there is no setting {setting!r}; there are: {', '.join(_LIMITS)}"
            return
        least, most = _LIMITS[setting]
        if setting == "bytes_per_s" and value is None:
            continue
        if setting == "queue_bytes" and not _is_whole(value):
            yield f"link {link!r}: queue_bytes must be a whole number, not {value!r}"
        elif not _is_number(value) or not least <= value <= most:  # type: ignore[operator]
            yield f"link {link!r}: {setting} must be a number from {least:g} to {most:g}, not {value!r}"


def _path_faults(plan: SwitchPlan) -> Iterator[str]:
    devices = {port.device for port in plan.ports}
    for source, targets in plan.paths.items():
        for target, path in targets.items():
            if unknown := {source, target} - devices:
                yield f"a path names the device {min(unknown)!r}, which has no port"
            if not all(_is_whole(index) and 0 <= index < len(plan.links) for index in path):
                yield f"the path from {source!r} to {target!r} names a link that is not there"


def _twins(what: str, names: Iterable[object]) -> Iterator[str]:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            yield f"there are two of {what} {name!r}"
        seen.add(name)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
