"""Sums up repeated measurements round by round; the prompt that all contestants continue."""

from collections.abc import Sequence

from tpiedge.lab.bench import figures as benching

_VOCABULARY = 30_000


def ratios(peer: Sequence[float | None], own: Sequence[float | None]) -> list[float]:
    """Returns how many times longer the peer took in each round that both measured."""
    return [p / o for p, o in zip(peer, own, strict=False) if p is not None and o is not None]


def prompt_ids(count: int) -> list[int]:
    """Scattered token ids below 30000."""
    return list(benching.prompt_ids(count, _VOCABULARY))
