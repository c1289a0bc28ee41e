"""Whose request begins next, and whose grammar is compiled next: every client has its turn, however many requests
another one sends. Pure.

A client is a text of which nothing else is known here, as in `portions.py`, which says how many may wait.

Laws:
1. A free place goes to one of the clients of whose requests the fewest run; of these to the one that was given least,
   in tokens of prompts and answers; of equals to the one whose request came first.
2. Nobody saves up turns: whoever was away counts as having been given no less than the one of those that waited at the
   latest turn who was given least.
3. Rank 0 compiles at most `places` grammars at a time. What is compiled and has not begun counts with them up to
   `places` and `ahead`, until rank 0 has said what became of it, however the request ended meanwhile. Of both each
   client has its portion, and clients take turns.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence

from tpiedge.master.journal import PendingAnswer
from tpiedge.portions import may_have

_KEY = secrets.token_bytes(16)
#: More than a cluster has members, so that none of them is forgotten for another.
REMEMBERED = 1024


class Turns:
    """What each client was given, and who has the next turn."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        self._least = 0  # of those that waited at the latest turn

    def next(self, able: Iterable[str], running: Iterable[str], waiting: Iterable[str] = ()) -> str:
        """Whose turn it is: one of the clients, at least one, of the requests that are able to begin, in their order;
        `running`: the clients of those that run; `waiting`: of all that wait, if others do."""
        clients, places = dict.fromkeys(able), Counter(running)
        self._least = min(map(self.given, (*clients, *waiting)))
        return min(clients, key=lambda client: (places[client], self.given(client)))

    def give(self, client: str, tokens: int) -> None:
        """Charges `tokens` to the client. The REMEMBERED clients that were charged last are remembered."""
        given = self.given(client) + tokens
        self._given.pop(client, None)
        self._given[client] = given
        if len(self._given) > REMEMBERED:
            del self._given[next(iter(self._given))]

    def given(self, client: str) -> int:
        """Tokens so far, those of the second law among them."""
        return max(self._least, self._given.get(client, 0))


class Compiling:
    """The grammars of one epoch at a time, by request: those of which rank 0 is to say something, or keeps something.
    For RequestQueue alone, under its lock."""

    def __init__(self, places: int, ahead: int) -> None:
        self._places = places
        self._total = places + ahead
        self.entries: dict[str, PendingAnswer] = {}

    def may_begin(self, one: PendingAnswer) -> bool:
        """Whether rank 0 may be asked for the answer. What began in another epoch goes on at once: its grammar was
        compiled then."""
        if one.request.grammar is None or one.journal.begun:
            return True
        entry = self.entries.get(one.request.id)
        return entry is not None and entry.compiling == "compiled"

    def next(self, waiting: Sequence[PendingAnswer], turns: Turns) -> PendingAnswer | None:
        """The one of those that wait whose grammar is to be compiled next, if any."""
        new = [one for one in waiting if one.request.id not in self.entries and not self.may_begin(one)]
        held = [entry for entry in self.entries.values() if entry.compiling != "begun"]
        compiling = [entry for entry in held if entry.compiling != "compiled"]
        able = [
            one
            for one in new
            if all(
                may_have(sum(entry.client == one.client for entry in some), len(some), places)
                for some, places in ((held, self._total), (compiling, self._places))
            )
        ]
        able = [one for one in able if one.attended] or able
        if not able:
            return None
        attended = [one.client for one in waiting if one.attended]
        turn = turns.next([one.client for one in able], [one.client for one in held], attended)
        return next(one for one in able if one.client == turn)

    def ask(self, one: PendingAnswer) -> str:
        """Notes that rank 0 is asked to compile its grammar. Returns the name of the client's equal grammars, which
        rank 0 compiles once, and which tells no other client that there are such."""
        self.entries[one.request.id], one.compiling = one, "asked"
        said = repr((one.client, one.request.grammar)).encode()
        return hashlib.blake2b(said, key=_KEY, digest_size=16).hexdigest()
