"""Reads and checks the JSON of `tpiedge bench allreduce --json` and `tpiedge bench decode --json`."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path, PurePath
from typing import Any, TypeVar, get_args

from tpiedge.errors import UserError
from tpiedge.wire.fields import CollectiveName

_T = TypeVar("_T")
_GIVE = "give what a benchmark of tpiedge printed with --json"


@dataclass(frozen=True)
class Spread:
    """The spread of several measurements."""

    median: float
    least: float
    most: float


@dataclass(frozen=True)
class AllReduce:
    """One row of `bench allreduce`. `network`: the links in words; `latency_s`: one way, 0 on loopback."""

    network: str
    latency_s: float
    nodes: int
    nbytes: int
    collective: str
    seconds: Spread
    predicted_s: float | None


@dataclass(frozen=True)
class Decode:
    """One setting of `bench decode`. Latency (one way) and rate are None where nothing limited the links.

    `model`: with its precision and, if any, the testbed.
    """

    model: str
    nodes: int
    threads: int
    collective: str
    wire: str
    latency_s: float | None
    bytes_per_s: float | None
    s_per_token: Spread


def load(path: Path) -> tuple[list[AllReduce], list[Decode]]:
    """Reads the file of one benchmark. Raises UserError."""
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not JSON: {_GIVE}") from None
    if not isinstance(record, dict) or not ("results" in record or "settings" in record):
        raise UserError(f"{path} has neither results nor settings: {_GIVE}")
    reduces = read_allreduces(record, path.name) if "results" in record else []
    return reduces, read_decodes(record, path.name) if "settings" in record else []


def read_allreduces(record: Mapping[str, Any], source: str) -> list[AllReduce]:
    """The results of `bench allreduce`; `source` is where they come from. Raises UserError."""
    rows = record["results"]
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{source} has no results: {_GIVE}")
    return [_read(_allreduce, row, f"result {place} of {source}") for place, row in enumerate(rows, start=1)]


def read_decodes(record: Mapping[str, Any], source: str) -> list[Decode]:
    """The settings of `bench decode`; `source` is where they come from. Raises UserError."""
    settings = record["settings"]
    if not isinstance(settings, dict) or not settings:
        raise UserError(f"{source} has no settings: {_GIVE}")
    words = [PurePath(str(record.get("model", ""))).name, record.get("precision"), record.get("testbed")]
    model = ", ".join(str(word) for word in words if word)
    make = partial(_decode, model)
    return [_read(make, row, f"setting {name!r} of {source}") for name, row in settings.items()]


def _read(make: Callable[[Any], _T], row: object, where: str) -> _T:
    try:
        return make(row)
    except KeyError as error:
        raise UserError(f"{where} lacks {error}: {_GIVE}") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{where} cannot be read ({error}): {_GIVE}") from None


def _allreduce(row: dict[str, Any]) -> AllReduce:
    if row["collective"] not in get_args(CollectiveName):
        raise ValueError(f"no collective is called {row['collective']!r}")
    latency_s, rate = _optional(row["latency_s"]), _optional(row["rate_bytes_per_s"])
    predicted_s = row.get("predicted_s")
    return AllReduce(
        _network(row["testbed"], latency_s, rate, row.get("wire", "f32")),
        latency_s or 0.0,
        _count(row["nodes"]),
        _count(row["bytes"]),
        row["collective"],
        _spread(row["seconds"]),
        None if predicted_s is None else _amount(predicted_s),
    )


def _decode(model: str, row: dict[str, Any]) -> Decode:
    return Decode(
        model,
        _count(row["nodes"]),
        _count(row["threads"]),
        str(row.get("collective") or "auto"),
        str(row.get("wire") or "f32"),
        _optional(row.get("latency_s")),
        _optional(row.get("bytes_per_s")),
        _spread(row["s_per_token"]),
    )


def _network(testbed: str | None, latency_s: float | None, rate: float | None, wire: str) -> str:
    limits = [f"{1e3 * latency_s:g} ms"] if latency_s else []
    limits += [f"{8e-6 * rate:g} Mbit/s"] if rate else []
    words = [str(testbed or "loopback"), *limits, *([] if wire == "f32" else [f"{wire} on the wire"])]
    return ", ".join(words)


def _spread(row: dict[str, Any]) -> Spread:
    median, least, most = (_amount(row[name]) for name in ("median", "min", "max"))
    if not 0 < least <= median <= most:
        raise ValueError(f"{median:g} is not between {least:g} and {most:g}")
    return Spread(median, least, most)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is no number of things")
    return value


def _optional(value: object) -> float | None:
    return None if value is None else _amount(value)


def _amount(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < inf:
        raise ValueError(f"{value!r} is no amount")
    return float(value)
