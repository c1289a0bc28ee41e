"""Turns of clients: picks the next request to begin and the next grammar to compile. Pure.

Laws:
1. A free place goes to a client with the fewest running requests; then to the one that was given least, in tokens of
   prompts and answers; then to the one whose request came first.
2. Turns are not saved up: a client that comes back counts as having been given the least of all clients that waited at
   the latest turn.
3. Rank 0 compiles at most `places` grammars at a time. Compiled grammars that have not begun count with them up to
   `places` + `ahead`, until rank 0 reports their end. Each client has its quota of both (`portions.py`).
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence

from tpiedge.master.journal import PendingAnswer
from tpiedge.portions import may_have

_KEY = secrets.token_bytes(16)
REMEMBERED = 1024  # clients, the last charged; more than a cluster has members


class Turns:
    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        self._least = 0  # of those that waited at the latest turn

    def next(
        self, able: list[PendingAnswer], running: Iterable[PendingAnswer], waiting: Iterable[PendingAnswer]
    ) -> PendingAnswer:
        """Picks one of the `able` requests, at least one, in order. `running` have places, `waiting` are all others."""
        places = Counter(one.client for one in running)
        awaited = [*able, *(one for one in waiting if one.attended)]
        self._least = min(self.given(one.client) for one in awaited)
        return min(able, key=lambda one: (places[one.client], self.given(one.client)))

    def give(self, client: str, tokens: int) -> None:
        given = self.given(client) + tokens
        self._given.pop(client, None)
        self._given[client] = given
        if len(self._given) > REMEMBERED:
            del self._given[next(iter(self._given))]

    def given(self, client: str) -> int:
        return max(self._least, self._given.get(client, 0))


class Compiling:
    """Grammars of one epoch, by request, until rank 0 reports their end. Under RequestQueue's lock."""

    def __init__(self, places: int, ahead: int) -> None:
        self._places = places
        self._total = places + ahead
        self.entries: dict[str, PendingAnswer] = {}

    def may_begin(self, one: PendingAnswer) -> bool:
        """Whether rank 0 may be asked for the answer. A request of an earlier epoch goes on at once."""
        if one.request.grammar is None or one.begun:
            return True
        return one.request.id in self.entries and one.compiling == "compiled"

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
        return turns.next(able, held, waiting) if able else None

    def ask(self, one: PendingAnswer) -> str:
        """Notes that rank 0 is asked to compile the grammar. Returns a name shared by equal grammars of this client,
        which rank 0 compiles once; no client learns of another's grammars."""
        self.entries[one.request.id], one.compiling = one, "asked"
        said = repr((one.client, one.request.grammar)).encode()
        return hashlib.blake2b(said, key=_KEY, digest_size=16).hexdigest()
