"""Describes a testbed as a tree: routers, and devices as leaves. Reads its TOML file."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpiedge.errors import UserError
from tpiedge.sanitise import sanitised_line
from tpiedge.units import MIB, parse_bytes

#: Linux names of network interfaces have at most 15 bytes.
_NAME = re.compile(r"[a-z](?:[a-z0-9_-]{0,13}[a-z0-9])?", re.ASCII)
_QUANTITY = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)\s*([^\s\d.].*)?", re.ASCII)
_RATES = {"Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3, "bit/s": 1.0}
# The folder is beside the package in a checkout, inside of it if installed from a wheel.
_FOLDERS = tuple(Path(__file__).parents[up] / "configs" / "testbeds" for up in (2, 3))


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link. Up to `jitter_s` is added at random to `latency_s`. `loss`: a fraction. `bytes_per_s`:
    None means no limit."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class NetworkRouter:
    """`up` leads to `uplink`, `down` comes from it. The root has no uplink, and its links have no meaning."""

    name: str
    uplink: str | None
    up: Link
    down: Link


@dataclass(frozen=True, slots=True)
class Device:
    """A leaf of the tree. None means no limit. `swap_bytes` come on top of `memory_bytes`."""

    name: str
    uplink: str
    up: Link
    down: Link
    cpus: float | None = None
    memory_bytes: int | None = None
    swap_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Description:
    """A testbed. The order of `devices` is the order of ranks."""

    about: str
    routers: tuple[NetworkRouter, ...]
    devices: tuple[Device, ...]

    @property
    def members(self) -> tuple[NetworkRouter | Device, ...]:
        return (*self.routers, *self.devices)

    def device(self, name: str) -> Device:
        """Returns a device. Raises UserError for an unknown name."""
        found = next((device for device in self.devices if device.name == name), None)
        if found is None:
            names = ", ".join(device.name for device in self.devices)
            raise UserError(f"the testbed has no device {name[:40]!r}: it has {names}")
        return found


@dataclass(frozen=True)
class Scenario:
    name: str
    text: str
    description: Description


def shipped_scenarios() -> dict[str, Path]:
    """Returns the built-in testbeds' files by name, sorted."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder else {}


def load_scenario(given: str, name: str | None = None) -> Scenario:
    """Loads a file or a built-in testbed."""
    path = Path(given)
    if "/" not in given and not given.endswith(".toml"):
        shipped = shipped_scenarios()
        if given not in shipped:
            raise UserError(
                f"there is no testbed {given[:40]!r}: give a file (./NAME.toml) or one of {', '.join(shipped)}"
            )
        path = shipped[given]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # a zero byte in a path, or no text
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read the testbed's file {path}: {reason}") from None
    if name is None:  # `My Home.toml` -> my-home
        name = re.sub(r"[^a-z0-9_-]+", "-", path.stem.lower())[:15].strip("-_")
    return Scenario(check_name(name, "a testbed"), text, parse_description(text, str(path)))


def check_name(name: str, what: str) -> str:
    """Returns `name`. Raises UserError unless it is fit for files, interfaces and control groups."""
    if not _NAME.fullmatch(name) or name in ("lo", "all", "default", "uplink"):
        raise UserError(
            f"{name[:40]!r} is no name for {what}: 1 to 15 of a-z, 0-9, '-' and '_', beginning with a letter"
        )
    return name


def parse_time(text: str) -> float:
    """Parses '0.25 ms' as 0.00025 seconds."""
    units = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
    return _scaled(text, units, "a time; write it like 0.25 ms", (0.0, 10.0), "at most 10 s")


def parse_rate(text: str) -> float:
    """Parses '300 Mbit/s' as 37_500_000.0 bytes per second."""
    words = "a rate; write it like 300 Mbit/s"
    return _scaled(text, _RATES, words, (1e3, 1e11), "1 kbit/s to 100 Gbit/s") / 8


def parse_part(text: str, greatest: float = 0.9) -> float:
    """Parses '1 %' as 0.01. Raises UserError above `greatest`."""
    words = "a part; write it like 1 %"
    return _scaled(text, {"%": 0.01}, words, (0.0, greatest), f"0 % to {format_part(greatest)}")


def _scaled(
    text: str, units: Mapping[str, float], wanted: str, bounds: tuple[float, float], allowed: str
) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    factor = units.get((match[2] or "").strip()) if match else None
    if match is None or factor is None:
        raise UserError(f"{text[:40]!r} is not {wanted}")
    value = float(match[1]) * factor
    if not bounds[0] <= value <= bounds[1]:
        raise UserError(f"{text!r} is out of range: {allowed}")
    return value


def format_time(seconds: float) -> str:
    """Writes 0.00025 as '0.25 ms'."""
    return f"{seconds:g} s" if seconds >= 1 else f"{round(seconds * 1000, 6):g} ms"


def format_rate(bytes_per_s: float | None) -> str:
    """Writes 37_500_000.0 as '300 Mbit/s'; None (no limit) as '-'."""
    if bytes_per_s is None:
        return "-"
    bits = bytes_per_s * 8
    unit = next((unit for unit, factor in _RATES.items() if bits >= factor), "bit/s")
    return f"{bits / _RATES[unit]:.4g} {unit}"


def format_part(part: float) -> str:
    """Writes 0.01 as '1 %'."""
    return f"{round(part * 100, 6):g} %"


def parse_description(text: str, source: str) -> Description:
    """Parses a testbed's TOML. Raises a UserError that names `source`, table and key."""
    try:
        return _description(tomllib.loads(text))
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a plain ValueError
        raise UserError(f"{source} is not valid TOML: {sanitised_line(error, 200)}") from None


#: Key of a link in a file -> (attribute, its parser).
_LINK_FIELDS: Mapping[str, tuple[str, Callable[[str], float]]] = {
    "latency": ("latency_s", parse_time),
    "jitter": ("jitter_s", parse_time),
    "loss": ("loss", parse_part),
    "rate": ("bytes_per_s", parse_rate),
}
_DIRECTED = tuple(f"{way}{key}" for way in ("", "up_", "down_") for key in _LINK_FIELDS)
_LIMITS = ("cpus", "memory", "swap")
_KEYS = {
    "router": ("name", "uplink", *_DIRECTED),
    "device": ("name", "uplink", *_DIRECTED, *_LIMITS),
    "defaults": (*_DIRECTED, *_LIMITS),
}


def _description(content: Mapping[str, Any]) -> Description:
    about, defaults = content.get("about", ""), content.get("defaults", {})
    if not isinstance(about, str):
        raise UserError("about must be a text")
    for key in content:
        if key not in ("about", *_KEYS):
            raise UserError(
                f"there is no table or key {key[:40]!r}: only about, [defaults], [[router]], [[device]]"
            )
    if not isinstance(defaults, dict):
        raise UserError("defaults must be one table: [defaults]")
    _check_keys("[defaults]", "defaults", defaults)
    routers = tuple(_router(place, table, defaults) for place, table in _tables(content, "router"))
    devices = tuple(_device(place, table, defaults) for place, table in _tables(content, "device"))
    description = Description(about, routers, devices)
    _check_tree(description)
    return description


def _tables(content: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    tables = content.get(kind, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UserError(f"{kind} must be tables: [[{kind}]]")
    for number, table in enumerate(tables, 1):
        name = table.get("name")
        if not isinstance(name, str):
            raise UserError(f"[[{kind}]] number {number}: it has no name")
        _at(f"[[{kind}]] {name[:40]!r}", "name", check_name, name, f"a {kind}")
        place = f"[[{kind}]] {name}"
        _check_keys(place, kind, table)
        yield place, table


def _check_keys(place: str, kind: str, table: Mapping[str, Any]) -> None:
    for key in table:
        if key not in _KEYS[kind]:
            raise UserError(f"{place}: there is no key {key[:40]!r}: it may have {', '.join(_KEYS[kind])}")


def _router(place: str, table: Mapping[str, Any], defaults: Mapping[str, Any]) -> NetworkRouter:
    if "uplink" in table:
        return NetworkRouter(table["name"], *_uplink(place, table, defaults))
    if said := next((key for key in _DIRECTED if key in table), None):
        raise UserError(f"{place}: {said} is of the link to an uplink, and the root has none")
    return NetworkRouter(table["name"], None, Link(), Link())


def _device(place: str, table: Mapping[str, Any], defaults: Mapping[str, Any]) -> Device:
    if "uplink" not in table:
        raise UserError(f"{place}: it has no uplink: name the router that it is connected to")
    merged = {key: defaults[key] for key in _LIMITS if key in defaults} | dict(table)
    if "swap" in merged and "memory" not in merged:
        raise UserError(f"{place}: swap: there is no limit of swap without one of memory: add memory")
    return Device(
        table["name"],
        *_uplink(place, table, defaults),
        cpus=_at(place, "cpus", _cpus, merged["cpus"]) if "cpus" in merged else None,
        memory_bytes=_at(place, "memory", _size, merged["memory"], 16 * MIB) if "memory" in merged else None,
        swap_bytes=_at(place, "swap", _size, merged["swap"], 0) if "swap" in merged else 0,
    )


def _uplink(place: str, table: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[str, Link, Link]:
    if not isinstance(table["uplink"], str):
        raise UserError(f"{place}: uplink must be the name of a router")
    up, down = (_link(place, way, table, defaults) for way in ("up_", "down_"))
    return table["uplink"], up, down


def _link(place: str, way: str, table: Mapping[str, Any], defaults: Mapping[str, Any]) -> Link:
    values: dict[str, float] = {}
    for key, (attribute, parse) in _LINK_FIELDS.items():
        for source, name in ((table, way + key), (table, key), (defaults, way + key), (defaults, key)):
            if name in source:
                where = place if source is table else "[defaults]"
                values[attribute] = _at(where, name, _with_unit, source[name], parse)
                break
    return Link(**values)


def _at(place: str, key: str, read: Callable[..., Any], *arguments: object) -> Any:
    try:
        return read(*arguments)
    except UserError as error:
        raise UserError(f"{place}: {key}: {error}") from None


def _with_unit(value: object, parse: Callable[[str], Any]) -> Any:
    if not isinstance(value, str):
        raise UserError("it has no unit: write a number and a unit within quotes")
    return parse(value)


def _cpus(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError("it must be a number, like 0.5 or 4")
    if not 0.01 <= value <= 1024:
        raise UserError("it is out of range: 0.01 to 1024")
    return float(value)


def _size(value: object, least: int) -> int:
    nbytes: int = _with_unit(value, parse_bytes)
    if not least <= nbytes <= 1 << 44:
        raise UserError(f"{value!r} is out of range: {'16 MiB to' if least else 'at most'} 16 TiB")
    return nbytes


def _check_tree(description: Description) -> None:
    if not description.devices:
        raise UserError("it has no device: add [[device]] tables")
    if not description.routers:
        raise UserError("it has no router: add [[router]] tables, one of them without uplink")
    if len(description.devices) > 64 or len(description.routers) > 128:
        raise UserError("it is too large: at most 64 devices and 128 routers")
    uplinks = {router.name: router.uplink for router in description.routers}
    names: set[str] = set()
    for member in description.members:
        if member.name in names:
            raise UserError(f"there are two members of the name {member.name}")
        names.add(member.name)
        if member.uplink is not None and member.uplink not in uplinks:
            kind = "router" if isinstance(member, NetworkRouter) else "device"
            raise UserError(f"[[{kind}]] {member.name}: uplink: there is no router {member.uplink[:40]!r}")
    for router in uplinks:
        seen = [router]
        while (uplink := uplinks[seen[-1]]) is not None:
            seen.append(uplink)
            if uplink in seen[:-1]:
                raise UserError(
                    f"[[router]] {router}: uplink: it leads in a circle: {' -> '.join(seen[:20])}"
                )
    roots = [name for name, uplink in uplinks.items() if uplink is None]
    if len(roots) != 1:
        raise UserError(f"exactly one router may be without uplink, the root: here {', '.join(roots)} are")
