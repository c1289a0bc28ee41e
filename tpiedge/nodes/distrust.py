"""Whether workers may speak with each other past rank 0: a machine without sockets, threads or clock.

A worker that keeps silent towards one other worker, or sends it junk, ends an epoch, and it is word against word. By
the star every message passes rank 0, which is the master's own: whoever sends junk there is known.

Laws:
1. For STAR_S after a quarrel there is a reason to go by the star; before any, and after that time, there is none.
2. A later quarrel begins the time anew; nothing else changes it.
"""

from typing import Final

__all__ = ["STAR_S", "Distrust"]

STAR_S: Final = 600.0


class Distrust:
    """Times are seconds on the caller's clock."""

    def __init__(self) -> None:
        self._until = 0.0
        self._cause = ""

    def quarrelled(self, cause: str, now: float) -> None:
        """An epoch ended by one worker's word on another, which is `cause`."""
        self._cause, self._until = cause, now + STAR_S

    def reason(self, now: float) -> str:
        """Why an epoch that begins now goes by the star, in words; "" where it need not."""
        if not self._cause or now >= self._until:
            return ""
        minutes = round(STAR_S / 60)
        return (
            f"the star for {minutes} minutes, because one worker's word stands against another's; past rank 0 "
            f"nothing goes unseen: {self._cause}"
        )[:2000]
