"""Sizes, times and counts as people write and read them."""

import math
import re
from decimal import Decimal

from tpiedge.errors import UserError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_FACTORS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_FACTORS |= {"ki": KIB, "mi": MIB, "gi": GIB, "ti": 1024 * GIB}
#: More bytes than any disk has, and more than thirty years in seconds.
_MOST_BYTES = 1e21
_MOST_S = 1e9
#: The user of a number below this has forgotten the unit.
_FEW = 1024
#: Up to this number, the forgotten unit is GB; above it, MB.
_FEW_GB = 64
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str) -> int:
    """Reads '4GB' as 4_000_000_000, '512MiB' as 536_870_912. Raises UserError."""
    match = _SIZE.fullmatch(text.strip())
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UserError(f"not a size: {text[:40]!r}; write it like 4GB, 512MiB or 1500000")
    exact = Decimal(match[1]) * factor
    size = int(exact)
    if size >= 1 << 63:
        raise UserError(f"not a size that a computer can have: {text[:40]!r}")
    if not match[2] and 0 < exact < _FEW:
        unit = "GB" if exact <= _FEW_GB else "MB"
        raise UserError(f"{text.strip()} has no unit: did you mean {match[1]}{unit}?")
    if exact and not size:
        raise UserError(f"{text.strip()} is less than a byte")
    return size


def format_bytes(count: float) -> str:
    """Writes 1536000 as '1.5 MB' (powers of 1000)."""
    if count < 0:
        return f"-{format_bytes(-count)}"
    if count >= _MOST_BYTES:
        return "over a billion TB"
    if math.isnan(count):
        return "an unknown size"
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def format_least(count: float) -> str:
    """Writes 1_500_001 as '2 MB': rounds up to whole MB."""
    return f"{-(-math.ceil(count) // 1_000_000)} MB" if abs(count) < _MOST_BYTES else format_bytes(count)


def format_range(start: int, stop: int) -> str:
    """Writes (0, 4) as '0-3', (4, 5) as '4', (5, 5) as '-'."""
    if stop <= start:
        return "-"
    return str(start) if stop == start + 1 else f"{start}-{stop - 1}"


def format_seconds(seconds: float) -> str:
    """Writes 0.0012 as '1.2 ms', 95 as '1 min 35 s'."""
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if seconds >= _MOST_S:
        return "over 30 years"
    if math.isnan(seconds):
        return "an unknown time"
    if 0 < seconds < 0.00995:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def format_age(seconds: float) -> str:
    """Writes 20 as 'just now', 180 as '3 min ago'."""
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{int(seconds // 60)} min ago"
    if seconds < 2 * 86_400:
        return f"{int(seconds // 3600)} h ago"
    if seconds >= _MOST_S:
        return "over 30 years ago"
    if math.isnan(seconds):
        return "at an unknown time"
    return f"{int(seconds // 86_400)} days ago"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Returns '1 node' or '3 nodes'. `plural` replaces `noun` + s."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
