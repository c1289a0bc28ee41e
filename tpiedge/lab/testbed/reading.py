"""A description of a testbed in TOML. Pure.

[defaults]                  # of every link and device, unless it says otherwise itself
latency = "0.25 ms"         # one way
rate = "300 Mbit/s"
memory = "8 GB"

[[router]]                  # exactly one has no uplink: the root
name = "core"

[[device]]
name = "laptop"
uplink = "core"
up_rate = "100 Mbit/s"      # towards the router; `down_` is the other direction
cpus = 4
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tpiedge.errors import UserError
from tpiedge.lab.testbed.description import Description, Device, Link, Router, check_name, check_tree
from tpiedge.lab.testbed.quantities import parse_part, parse_rate, parse_time
from tpiedge.toml_text import parse_toml
from tpiedge.units import MIB, parse_bytes

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
