"""Times, rates and parts as a description of a testbed writes them: "0.25 ms", "300 Mbit/s", "1 %". Pure."""

import re

from tpiedge.errors import UserError

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
