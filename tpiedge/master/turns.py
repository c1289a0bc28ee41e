"""Turns of clients: picks the next request to begin and the next grammar to compile. Pure.

A client is any text; `portions.py` says how many of its requests may wait.

Laws:
1. A free place goes to a client with the fewest running requests; among equals to the one that was given least, in
   tokens of prompts and answers; then to the one whose request came first.
2. Turns are not saved up: a client that comes back counts as having been given as much as the least that any client
   waiting at the latest turn had been given.
3. Rank 0 compiles at most `places` grammars at a time. Compiled grammars that have not begun count with them up to
   `places` + `ahead`, until rank 0 has reported their end, even if their request ended before. Each client has its
   quota of both, and clients take turns.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence

from tpiedge.master.journal import PendingAnswer
from tpiedge.portions import may_have

_KEY = secrets.token_bytes(16)
#: Clients, the last charged; more than a cluster has members.
REMEMBERED = 1024


class Turns:
    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        self._least = 0  # of those that waited at the latest turn

    def next(self, able: Iterable[str], running: Iterable[str], waiting: Iterable[str] = ()) -> str:
        """Picks the client with the next turn. `able`: clients whose requests can begin, at least one, in order;
        `running`, `waiting`: clients of all such requests."""
        clients, places = dict.fromkeys(able), Counter(running)
        self._least = min(map(self.given, (*clients, *waiting)))
        return min(clients, key=lambda client: (places[client], self.given(client)))

    def give(self, client: str, tokens: int) -> None:
        given = self.given(client) + tokens
        self._given.pop(client, None)
        self._given[client] = given
        if len(self._given) > REMEMBERED:
            del self._given[next(iter(self._given))]

    def given(self, client: str) -> int:
        return max(self._least, self._given.get(client, 0))


class Compiling:
    """Grammars of one epoch, by request, until rank 0 has reported their end. Under RequestQueue's lock."""

    def __init__(self, places: int, ahead: int) -> None:
        self._places = places
        self._total = places + ahead
        self.entries: dict[str, PendingAnswer] = {}

    def may_begin(self, one: PendingAnswer) -> bool:
        """Whether rank 0 may be asked for the answer: a request that began in another epoch goes on at once."""
        if one.request.grammar is None or one.begun:
            return True
        entry = self.entries.get(one.request.id)
        return entry is not None and entry.compiling == "compiled"

    def next(self, waiting: Sequence[PendingAnswer], turns: Turns) -> PendingAnswer | None:
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
        """Notes that rank 0 is asked to compile the grammar. Returns a name shared by equal grammars of this client
        only, which rank 0 compiles once: so no client learns of another's."""
        self.entries[one.request.id], one.compiling = one, "asked"
        said = repr((one.client, one.request.grammar)).encode()
        return hashlib.blake2b(said, key=_KEY, digest_size=16).hexdigest()
