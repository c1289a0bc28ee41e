"""Whose request begins next, and whose grammar is compiled next: every client has its turn, however many requests
another one sends. Pure.

A client is a text of which nothing else is known here, as in `portions.py`, which says how many may wait.

Laws:
1. A free place goes to one of the clients of whose requests the fewest run; of these to the one that was given least,
   in tokens of prompts and answers; of equals to the one whose request came first.
2. Nobody saves up turns: whoever was away counts as having been given no less than the one of those that waited at the
   latest turn who was given least.
3. Rank 0 compiles at most `places` grammars at a time. What is compiled and has not begun counts with them up to
   `places` and `ahead`. Of both each client has its portion, and clients take turns.
4. Requests with one `group` have one grammar, which is compiled once while one of them lasts.
5. A place is free again when rank 0 has said what became of it, however the request ended meanwhile.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tpiedge.master.pending_answer import PendingAnswer
from tpiedge.master.remembered import Remembered
from tpiedge.portions import may_have

_KEY = secrets.token_bytes(16)


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


@dataclass
class _CompilingEntry:
    """`asked`: rank 0 is to say whether it is compiled."""

    client: str
    group: str
    state: Literal["asked", "compiled", "begun", "left"] = "asked"


class Compiling:
    """Of one epoch at a time. For RequestQueue alone, under its lock."""

    def __init__(self, places: int, ahead: int) -> None:
        self._places = places
        self._total = places + ahead
        self._entries: dict[str, _CompilingEntry] = {}

    def may_begin(self, one: PendingAnswer) -> bool:
        """Whether rank 0 may be asked for the answer. What began in another epoch goes on at once: its grammar was
        compiled then."""
        if one.request.grammar is None or one.journal.begun:
            return True
        entry = self._entries.get(one.request.id)
        return entry is not None and entry.state == "compiled"

    def next(self, waiting: Sequence[PendingAnswer], turns: Turns) -> PendingAnswer | None:
        """The one of those that wait whose grammar is to be compiled next, if any."""
        new = [one for one in waiting if one.request.id not in self._entries and not self.may_begin(one)]
        able = [one for one in new if self._has_place(one)]
        able = [one for one in able if one.attended] or able
        if not able:
            return None
        attended = [one.client for one in waiting if one.attended]
        turn = turns.next([one.client for one in able], [one.client for one in self._held()], attended)
        return next(one for one in able if one.client == turn)

    def ask(self, one: PendingAnswer) -> str:
        """Notes that rank 0 is asked to compile its grammar. Returns the group's name."""
        group = _group(one)
        self._entries[one.request.id] = _CompilingEntry(one.client, group)
        return group

    def client(self, request: str) -> str | None:
        """Whose the request is of which something is expected or kept; None for all others."""
        entry = self._entries.get(request)
        return None if entry is None else entry.client

    def compiled(self, request: str) -> None:
        """Notes that the answer may begin, as rank 0 says."""
        entry = self._entries.get(request)
        if entry is not None and entry.state == "asked":
            entry.state = "compiled"

    def begin(self, request: str) -> None:
        """Notes that rank 0 is asked for the answer."""
        if request in self._entries:
            self._entries[request].state = "begun"

    def leave(self, request: str) -> bool:
        """Notes that the request has ended before it began. Returns whether rank 0 is to be told."""
        entry = self._entries.get(request)
        if entry is None:
            return False
        entry.state = "left"
        return True

    def end(self, request: str) -> None:
        """Forgets a request of which rank 0 has nothing any more."""
        self._entries.pop(request, None)

    def clear(self) -> None:
        """Forgets all, as the epoch has ended."""
        self._entries.clear()

    def _has_place(self, one: PendingAnswer) -> bool:
        held = self._held()
        own = sum(entry.client == one.client for entry in held)
        if not may_have(own, len(held), self._total):
            return False
        group = _group(one)
        if self._lives(group):
            return True
        compiling = [entry for entry in held if entry.state != "compiled"]
        if any(entry.group == group and entry.state == "asked" for entry in compiling):
            return False  # it joins that
        own = sum(entry.client == one.client for entry in compiling)
        return may_have(own, len(compiling), self._places)

    def _held(self) -> list[_CompilingEntry]:
        return [entry for entry in self._entries.values() if entry.state != "begun"]

    def _lives(self, group: str) -> bool:
        """Whether rank 0 has the group's grammar compiled."""
        return any(
            entry.group == group and entry.state in ("compiled", "begun") for entry in self._entries.values()
        )


def _group(one: PendingAnswer) -> str:
    """One name for the equal grammars of one client, which tells no other that there are such."""
    if not one.group:
        said = repr((one.client, one.request.grammar)).encode()
        one.group = hashlib.blake2b(said, key=_KEY, digest_size=16).hexdigest()
    return one.group
