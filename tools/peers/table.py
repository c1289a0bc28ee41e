"""The records of comparisons for people: one line per limit and contestant, or per setting and kind of speed."""

from collections.abc import Iterator, Mapping
from typing import Any

from tpiedge.units import format_bytes

_ROW = "{:24} {:>24} {:>20} {:>8}  {}"
_SPEED_ROW = "{:24} {:12} {:>24} {:>24} {:>18} {:>7}  {}"
_RESULTS = {True: "meets", False: "misses", None: ""}


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


def decode_table(record: Mapping[str, Any]) -> str:
    """Tokens per second or bytes of both, the ratio and its bound; then the error, if there is one."""
    head = f"{record['processor']}, llama.cpp of llama-cpp-python {record['llama.cpp']}, {record['repeats']} repeats"
    rows: list[tuple[object, ...]] = [("", "", "llama.cpp", "tpiedge", "ratio", "bound", "")]
    for setting in record["settings"]:
        name = "{shape} {precision}, {threads} threads".format_map(setting)
        for kind, found in setting.items():
            if kind == "decode" or kind.startswith("prefill "):
                rates = (_spread(found[f"{who}_tokens_per_s"], 2) for who in ("llama_cpp", "tpiedge"))
                columns = (*rates, _spread(found["times_faster_than_llama_cpp"], 2), found["required"] or "")
                rows.append((name, kind, *columns, _RESULTS[found["met"]]))
        size = setting["bytes"]
        columns = (*(format_bytes(size[who]) for who in ("llama_cpp", "tpiedge")), f"{size['ratio']:.4f}")
        rows.append((name, "bytes", *columns, size["at_most"] or "", _RESULTS[size["met"]]))
        if reads := setting.get("reads"):
            rates = (f"{format_bytes(reads[who]['median'])}/s" for who in ("memory", "tpiedge"))
            columns = (*rates, _spread(reads["part"], 2))
            rows.append((name, "of memory", *columns, reads["at_least"] or "", _RESULTS[reads["met"]]))
    error = [f"error: {record['error']}"] if "error" in record else []
    return "\n".join([head, *(_SPEED_ROW.format(*row).rstrip() for row in rows), *error])


def _spread(found: Mapping[str, float] | None, digits: int) -> str:
    if found is None:
        return "-"
    median, least, most = (f"{found[name]:.{digits}f}" for name in ("median", "min", "max"))
    return f"{median} ({least}-{most})"
