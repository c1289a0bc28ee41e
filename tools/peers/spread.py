"""What repeated measurements come to, and the prompt that all of them continue."""

import statistics
from collections.abc import Sequence

__all__ = ["prompt_ids", "ratios", "spread"]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum of at least one value."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(peer: Sequence[float | None], own: Sequence[float | None]) -> list[float]:
    """How many times longer the peer took, round by round. Rounds that either missed, or did not run, are left out."""
    return [p / o for p, o in zip(peer, own, strict=False) if p is not None and o is not None]


def prompt_ids(count: int) -> list[int]:
    """Scattered token ids below 30000."""
    return [(7919 * index + 13) % 30000 for index in range(count)]
