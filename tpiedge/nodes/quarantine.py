"""How long whoever broke the protocol is left out of plans: a machine without sockets, threads or clock.

Laws:
1. The first offence costs FIRST_S, every further one twice as much as the one before, up to LONGEST_S.
2. Offences while a worker is out already, of a node that has not noticed yet, count as one.
3. Who behaved for FORGIVEN_S after the end of its time starts anew.
4. A worker that sends more than FLOOD messages between two heartbeats breaks the protocol.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

__all__ = ["FIRST_S", "FLOOD", "FORGIVEN_S", "LONGEST_S", "Quarantine", "Traffic"]

FIRST_S: Final = 60.0
LONGEST_S: Final = 3600.0
FORGIVEN_S: Final = 24 * 3600.0
FLOOD: Final = 3000


@dataclass(frozen=True)
class _Sentence:
    length_s: float
    until: float


class Quarantine:
    """Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._sentences: dict[str, _Sentence] = {}

    def convict(self, name: str, now: float) -> float:
        """`name` broke the protocol; the time until which it is left out."""
        last = self._sentences.get(name)
        if last is not None and now < last.until:
            return last.until
        length_s = FIRST_S
        if last is not None and now < last.until + FORGIVEN_S:
            length_s = min(2 * last.length_s, LONGEST_S)
        self._sentences[name] = _Sentence(length_s, now + length_s)
        return now + length_s

    def forget(self, name: str) -> None:
        """The worker was revoked."""
        self._sentences.pop(name, None)


class Traffic:
    """Counts the messages of each peer between two heartbeats."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def floods(self, peer: str) -> bool:
        """Count a message; True for just the one that is too many."""
        self._counts[peer] += 1
        return self._counts[peer] == FLOOD

    def tick(self) -> None:
        """A heartbeat: count anew."""
        self._counts.clear()
