"""How long a cluster takes to read prompts: a machine without clock or threads."""

from collections import deque
from typing import Final

#: Of fewer tokens than this the time says more about waiting than about reading.
_LEAST: Final = 64
#: Enough that prompts are among them of which nothing was cached.
_KEPT: Final = 16


class ReadingRate:
    """Times are seconds on the caller's clock; those between `begin` and `rest` are spent with prompts, one or more."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._tokens = 0
        self._rates: deque[float] = deque(maxlen=_KEPT)

    @property
    def token_s(self) -> float:
        """Seconds per token, at the slowest rate of late; 0 where none is known."""
        return max(self._rates, default=0.0)

    def begin(self, now: float) -> None:
        """A prompt is read from now on, perhaps beside others."""
        if self._since is None:
            self._since, self._tokens = now, 0

    def read(self, tokens: int) -> None:
        """One is read to its end."""
        self._tokens += tokens

    def rest(self, now: float) -> None:
        """None is read any more. Without effect where none was."""
        if self._since is not None and self._tokens >= _LEAST:
            self._rates.append((now - self._since) / self._tokens)
        self._since = None
