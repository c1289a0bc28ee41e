"""The record of a comparison for people: one line per limit and contestant."""

from collections.abc import Iterator, Mapping
from typing import Any

from tpiedge.units import format_bytes

_ROW = "{:24} {:>24} {:>20} {:>8}  {}"


def table(record: Mapping[str, Any]) -> str:
    lines = [f"{record['model']}, {format_bytes(record['model_bytes'])}, {record['threads']} threads"]
    lines += [f"not installed: {name}: {why}" for name, why in record["not_installed"].items()]
    for limit in record["limits"]:
        lines += ["", *_of_limit(limit)]
    return "\n".join(lines)


def _of_limit(limit: Mapping[str, Any]) -> Iterator[str]:
    rate = limit["disk_direct_bytes_per_s"]
    disk = f"; the disk reads {format_bytes(rate['median'])}/s" if rate else ""
    yield f"limit {format_bytes(limit['limit_bytes'])}, {limit['percent_of_model']} % of the model{disk}"
    yield _ROW.format("", "s/token", "times tpiedge's", "at least", "")
    for name, found in limit["contestants"].items():
        versus = limit["times_slower_than_tpiedge"].get(name, {})
        result = {True: "met", False: "MISSED", None: ""}[versus.get("met")]
        words = [result, *sorted(set(found["failures"]))]
        required = versus.get("required") or ""
        columns = (_spread(found["s_per_token"], 3), _spread(versus.get("ratio"), 2), required)
        yield _ROW.format(name, *columns, "; ".join(filter(None, words))).rstrip()


def _spread(found: Mapping[str, float] | None, digits: int) -> str:
    if found is None:
        return "-"
    median, least, most = (f"{found[name]:.{digits}f}" for name in ("median", "min", "max"))
    return f"{median} ({least}-{most})"
