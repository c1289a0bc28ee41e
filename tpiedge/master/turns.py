"""Whose request begins next: every client has its turn, however many requests another one sends. Pure.

A client is a text of which nothing else is known here, as in `portions.py`, which says how many may wait.

Laws:
1. A free place goes to one of the clients of whose requests the fewest run; of these to the one that was given least,
   in tokens of prompts and answers; of equals to the one whose request came first.
2. Nobody saves up turns: whoever was away counts as having been given no less than the one of those that waited at the
   latest turn who was given least.
"""

from collections import Counter
from collections.abc import Iterable

from tpiedge.master.remembered import Remembered


class Turns:
    """What each client was given, and who has the next turn."""

    def __init__(self) -> None:
        self._given: Remembered[int] = Remembered()
        self._least = 0  # of those that waited at the latest turn

    def next(self, able: Iterable[str], running: Iterable[str], waiting: Iterable[str] = ()) -> str:
        """Whose turn it is: one of the clients, at least one, of the requests that are able to begin, in their order;
        `running`: the clients of those that run; `waiting`: of all that wait, if others do."""
        clients, places = dict.fromkeys(able), Counter(running)
        self._least = min(map(self.given, (*clients, *waiting)))
        return min(clients, key=lambda client: (places[client], self.given(client)))

    def give(self, client: str, tokens: int) -> None:
        """So many are computed for it."""
        self._given.note(client, self.given(client) + tokens)

    def given(self, client: str) -> int:
        """Tokens so far, those of the second law among them."""
        return max(self._least, self._given.get(client) or 0)
