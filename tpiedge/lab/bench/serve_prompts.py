"""Prompts for a server that is measured, and when requests arrive. Pure: the same seed gives the same ones."""

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpiedge.errors import UserError

ServePrompt = str | tuple[int, ...]
"""A text, or token ids."""

_FIRST_ID = 3
"""In most vocabularies the ids before it are signs for the end and the like."""


@dataclass
class RandomPrompts:
    """Token ids below `vocabulary`; no two prompts begin alike but for the first `shared` tokens, which all have."""

    vocabulary: int
    shared: int
    seed: int

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._prefix = self._ids(self.shared)

    def of(self, tokens: int) -> tuple[int, ...]:
        """The next prompt of so many tokens; of the shared ones only, where it has no more."""
        prefix = self._prefix[:tokens]
        return (*prefix, *self._ids(tokens - len(prefix)))

    def unlike(self, tokens: int) -> tuple[int, ...]:
        """The next prompt, without those that all share."""
        return self._ids(tokens)

    def _ids(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(_FIRST_ID, self.vocabulary) for _ in range(count))


def arrivals(rate: float, seed: int) -> Iterator[float]:
    """Seconds from the start at which the requests of a Poisson process arrive, `rate` per second. Without an end."""
    waits = random.Random(seed)
    return itertools.accumulate(waits.expovariate(rate) for _ in itertools.count())


def parse_prompts(text: str, name: str) -> list[ServePrompt]:
    """One prompt per line: a JSON string, a JSON array of token ids, or else the line itself. Empty lines are none.

    `name`: of the file. Raises UserError where there is no prompt.
    """
    found = [_prompt(line) for line in text.splitlines() if line.strip()]
    if not found:
        raise UserError(f"{name} has no prompts: write one per line")
    return found


def _prompt(line: str) -> ServePrompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if isinstance(value, str) and value:
        return value
    return tuple(value) if _is_ids(value) else line


def _is_ids(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and bool(value)
        and all(type(token) is int and token >= 0 for token in value)
    )
