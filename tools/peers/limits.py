"""Memory limits: as bytes, or as the part of the model's file that would fit into them."""

import re
from dataclasses import dataclass

from tpiedge.errors import UserError
from tpiedge.units import parse_bytes

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*%", re.ASCII)

_REQUIRED = {"accelerate": 2.0, "accelerate device_map": 2.0, "airllm": 5.0}
_REQUIRED_OF_MMAP = {60: 1.3, 90: 1.8}
"""Percent of the file that fits -> how many times faster than llama.cpp's mapping of it."""


@dataclass(frozen=True)
class Limit:
    """The limits of a control group, for everything in it: programs, libraries, weights, page cache."""

    nbytes: int
    model_bytes: int

    @property
    def percent(self) -> float:
        """Returns how much of the model's file would fit alone."""
        return 100 * self.nbytes / self.model_bytes


def parse_limits(text: str, model_bytes: int) -> list[Limit]:
    """'60%,1500MB' -> limits, ascending. Raises UserError."""
    limits = {_parse(part.strip(), model_bytes) for part in text.split(",")}
    return [Limit(nbytes, model_bytes) for nbytes in sorted(limits)]


def _parse(text: str, model_bytes: int) -> int:
    part = _PART.fullmatch(text)
    nbytes = int(float(part[1]) / 100 * model_bytes) if part else parse_bytes(text)
    if nbytes <= 0:
        raise UserError(f"a limit of {text} leaves no memory; write it like 60% or 1500MB")
    return nbytes


def required_ratio(peer: str, limit: Limit) -> float | None:
    """Returns how many times faster than `peer` tpiedge has to be; None without a goal."""
    if peer == "llama.cpp":
        return _REQUIRED_OF_MMAP.get(round(limit.percent))
    return _REQUIRED.get(peer)
