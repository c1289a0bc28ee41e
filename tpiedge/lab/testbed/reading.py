"""Times, rates and parts as a description of a testbed writes them: "0.25 ms", "300 Mbit/s", "1 %". Pure."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpiedge.errors import UserError
from tpiedge.lab.testbed.description import Description, Device, Link, Router, check_name, check_tree
from tpiedge.toml_text import parse_toml
from tpiedge.units import MIB, parse_bytes

_NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)\s*([^\s\d.].*)?", re.ASCII)
_TIMES = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_RATES = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
_PARTS = {"%": 0.01}

_LONGEST_S = 10.0
_SLOWEST_BIT_S, _FASTEST_BIT_S = 1e3, 1e11
_GREATEST_PART = 0.9


def parse_time(text: str) -> float:
    """'0.25 ms' -> 0.00025 seconds. Raises UserError."""
    seconds = _scaled(text, _TIMES, "a time; write it like 0.25 ms")
    if seconds > _LONGEST_S:
        raise UserError(f"{text!r} is out of range: at most {_LONGEST_S:.0f} s")
    return seconds


def parse_rate(text: str) -> float:
    """'300 Mbit/s' -> 37_500_000.0 bytes per second. Raises UserError."""
    bits = _scaled(text, _RATES, "a rate; write it like 300 Mbit/s")
    if not _SLOWEST_BIT_S <= bits <= _FASTEST_BIT_S:
        raise UserError(f"{text!r} is out of range: 1 kbit/s to 100 Gbit/s")
    return bits / 8


def parse_part(text: str, greatest: float = _GREATEST_PART) -> float:
    """'1 %' -> 0.01. Raises UserError."""
    part = _scaled(text, _PARTS, "a part; write it like 1 %")
    if part > greatest:
        raise UserError(f"{text!r} is out of range: 0 % to {format_part(greatest)}")
    return part


def format_time(seconds: float) -> str:
    """0.00025 -> '0.25 ms'."""
    return f"{seconds:g} s" if seconds >= 1 else f"{round(seconds * 1000, 6):g} ms"


def format_rate(bytes_per_s: float | None) -> str:
    """37_500_000.0 -> '300 Mbit/s'; None has no limit: '-'."""
    if bytes_per_s is None:
        return "-"
    bits = bytes_per_s * 8
    unit = next((unit for unit in ("Gbit/s", "Mbit/s", "kbit/s") if bits >= _RATES[unit]), "bit/s")
    return f"{bits / _RATES[unit]:.4g} {unit}"


def format_part(part: float) -> str:
    """0.01 -> '1 %'."""
    return f"{round(part * 100, 6):g} %"


def _scaled(text: str, units: dict[str, float], wanted: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    factor = units.get((match[2] or "").strip()) if match else None
    if match is None or factor is None:
        raise UserError(f"{text[:40]!r} is not {wanted}")
    return float(match[1]) * factor


_LEAST_MEMORY, _MOST_MEMORY = 16 * MIB, 1 << 44
_LEAST_CPUS, _MOST_CPUS = 0.01, 1024.0

#: Key of a link in a file -> (attribute, what reads it).
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


def parse_description(text: str, source: str) -> Description:
    """Raises UserError, one line with `source`, the table and the key."""
    content = parse_toml(text, source)
    try:
        return _description(content)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def _description(content: Mapping[str, Any]) -> Description:
    about = content.get("about", "")
    if not isinstance(about, str):
        raise UserError("about must be a text")
    for key in content:
        if key not in ("about", *_KEYS):
            raise UserError(
                f"there is no table or key {key[:40]!r}: only about, [defaults], [[router]], [[device]]"
            )
    defaults = content.get("defaults", {})
    if not isinstance(defaults, dict):
        raise UserError("defaults must be one table: [defaults]")
    _check_keys("[defaults]", "defaults", defaults)
    routers = tuple(_router(place, table, defaults) for place, table in _tables(content, "router"))
    devices = tuple(_device(place, table, defaults) for place, table in _tables(content, "device"))
    description = Description(about, routers, devices)
    check_tree(description)
    return description


def _tables(content: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(how to call it, table)."""
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


def _router(place: str, table: Mapping[str, Any], defaults: Mapping[str, Any]) -> Router:
    uplink = table.get("uplink")
    if uplink is None:
        if said := next((key for key in _DIRECTED if key in table), None):
            raise UserError(
                f"{place}: {said} is of the link to an uplink, and it has none: the root has no such link"
            )
        return Router(table["name"], None, Link(), Link())
    return Router(table["name"], _uplink(place, uplink), *_links(place, table, defaults))


def _device(place: str, table: Mapping[str, Any], defaults: Mapping[str, Any]) -> Device:
    if "uplink" not in table:
        raise UserError(f"{place}: it has no uplink: name the router that it is connected to")
    merged = {key: defaults[key] for key in _LIMITS if key in defaults} | dict(table)
    return Device(
        table["name"],
        _uplink(place, table["uplink"]),
        *_links(place, table, defaults),
        cpus=_at(place, "cpus", _cpus, merged["cpus"]) if "cpus" in merged else None,
        memory_bytes=_at(place, "memory", _memory, merged["memory"]) if "memory" in merged else None,
        swap_bytes=_at(place, "swap", _swap, merged["swap"], "memory" in merged) if "swap" in merged else 0,
    )


def _uplink(place: str, uplink: object) -> str:
    if not isinstance(uplink, str):
        raise UserError(f"{place}: uplink must be the name of a router")
    return uplink


def _links(place: str, table: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[Link, Link]:
    """(up, down). What a table says counts before [defaults], and what is said of a direction before what is not."""
    return _link(place, "up_", table, defaults), _link(place, "down_", table, defaults)


def _link(place: str, way: str, table: Mapping[str, Any], defaults: Mapping[str, Any]) -> Link:
    values: dict[str, float] = {}
    for key, (attribute, parse) in _LINK_FIELDS.items():
        sources = ((table, way + key), (table, key), (defaults, way + key), (defaults, key))
        for source, name in sources:
            if name in source:
                where = place if source is table else "[defaults]"
                values[attribute] = _at(where, name, _parsed, source[name], parse)
                break
    return Link(**values)


def _at(place: str, key: str, read: Callable[..., Any], *arguments: object) -> Any:
    try:
        return read(*arguments)
    except UserError as error:
        raise UserError(f"{place}: {key}: {error}") from None


def _parsed(value: object, parse: Callable[[str], float]) -> float:
    if not isinstance(value, str):
        raise UserError("it has no unit: write a number and a unit within quotes")
    return parse(value)


def _cpus(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError("it must be a number, like 0.5 or 4")
    if not _LEAST_CPUS <= value <= _MOST_CPUS:
        raise UserError(f"it is out of range: {_LEAST_CPUS} to {_MOST_CPUS:.0f}")
    return float(value)


def _memory(value: object) -> int:
    nbytes = _size(value)
    if not _LEAST_MEMORY <= nbytes <= _MOST_MEMORY:
        raise UserError(f"{value!r} is out of range: 16 MiB to 16 TiB")
    return nbytes


def _swap(value: object, limited: bool) -> int:
    nbytes = _size(value)
    if nbytes > _MOST_MEMORY:
        raise UserError(f"{value!r} is out of range: at most 16 TiB")
    if not limited:
        raise UserError("there is no limit of swap without one of memory: add memory")
    return nbytes


def _size(value: object) -> int:
    if not isinstance(value, str):
        raise UserError('it has no unit: write it like "8 GB"')
    return parse_bytes(value)


# Beside the package in a checkout of the sources, inside of it where it was installed from a wheel.
_FOLDERS = tuple(Path(__file__).parents[up] / "configs" / "testbeds" for up in (2, 3))
_MAX_BYTES = 1 << 20
_UNFIT = re.compile(r"[^a-z0-9_-]+")


@dataclass(frozen=True)
class Scenario:
    """`name` is that of the testbed that it makes; `text` is its file's, which `description` says."""

    name: str
    text: str
    description: Description


def shipped_scenarios() -> dict[str, Path]:
    """Name -> file, in the order of names. Empty where the installation lacks the files."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder else {}


def load_scenario(given: str, name: str | None = None) -> Scenario:
    """A path where `given` has a slash or ends in .toml, otherwise one that comes along. Raises UserError."""
    path = _path(given)
    text = _text(path)
    return Scenario(
        check_name(name if name is not None else _name_of(path), "a testbed"),
        text,
        parse_description(text, str(path)),
    )


def _path(given: str) -> Path:
    if "/" in given or given.endswith(".toml"):
        return Path(given)
    shipped = shipped_scenarios()
    if given not in shipped:
        raise UserError(
            f"there is no testbed {given[:40]!r}: give a file (./NAME.toml) or one of {', '.join(shipped)}"
        )
    return shipped[given]


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # a zero byte in a path is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read the testbed's file {path}: {reason}") from None
    if len(content) > _MAX_BYTES:
        raise UserError(f"the testbed's file {path} is larger than 1 MiB")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UserError(f"the testbed's file {path} is not text in UTF-8") from None


def _name_of(path: Path) -> str:
    """`My Home.toml` -> my-home."""
    return _UNFIT.sub("-", path.stem.lower())[:15].strip("-_")
