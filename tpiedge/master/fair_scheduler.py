"""Fair scheduling of clients: picks the next request and the next grammar. Pure.

Laws:
1. A free place goes to the client with the fewest running requests. Ties go to the least served client (in tokens of
   prompts and answers), then to the earliest request.
2. Clients cannot save up service. Each pick raises all clients' counts to at least the count of the least served
   waiting client (the counter lift of VTC, arXiv:2401.00588).
3. Rank 0 compiles at most `places` grammars at a time. These grammars and the compiled grammars of waiting requests are
   at most `places` + `ahead`. A cancelled grammar counts until rank 0 reports its end. A client has a quota of each
   limit."""

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence

from tpiedge.master.journal import PendingAnswer
from tpiedge.quotas import within_quota

_KEY = secrets.token_bytes(16)
REMEMBERED = 1024  # the clients that were charged last; more than a cluster has members


class FairScheduler:
    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._least = 0  # tokens of the least served client that waited at the latest choice

    def pick(
        self, able: list[PendingAnswer], running: Iterable[PendingAnswer], waiting: Iterable[PendingAnswer]
    ) -> PendingAnswer:
        """Picks one of `able` (not empty). `running`: requests with places. `waiting`: all waiting requests."""
        places = Counter(one.client for one in running)
        awaited = [*able, *(one for one in waiting if one.has_reader)]
        self._least = min(self.served(one.client) for one in awaited)
        return min(able, key=lambda one: (places[one.client], self.served(one.client)))

    def charge(self, client: str, tokens: int) -> None:
        served = self.served(client) + tokens
        self._served.pop(client, None)
        self._served[client] = served
        if len(self._served) > REMEMBERED:
            del self._served[next(iter(self._served))]

    def served(self, client: str) -> int:
        return max(self._least, self._served.get(client, 0))


class Compiling:
    """Grammars of one epoch, by request. Hold RequestQueue's lock for each call."""

    def __init__(self, places: int, ahead: int) -> None:
        self._places = places
        self._total = places + ahead
        self.entries: dict[str, PendingAnswer] = {}

    def may_begin(self, one: PendingAnswer) -> bool:
        if one.request.grammar is None or one.begun:
            return True
        return one.request.id in self.entries and one.compiling == "compiled"

    def next(self, waiting: Sequence[PendingAnswer], scheduler: FairScheduler) -> PendingAnswer | None:
        new = [one for one in waiting if one.request.id not in self.entries and not self.may_begin(one)]
        held = [entry for entry in self.entries.values() if entry.compiling != "begun"]
        compiling = [entry for entry in held if entry.compiling != "compiled"]
        able = [
            one
            for one in new
            if all(
                within_quota(sum(entry.client == one.client for entry in some), len(some), places)
                for some, places in ((held, self._total), (compiling, self._places))
            )
        ]
        able = [one for one in able if one.has_reader] or able
        return scheduler.pick(able, held, waiting) if able else None

    def start(self, one: PendingAnswer) -> str:
        """Notes that rank 0 compiles the grammar. Returns a name that equal grammars of this client share."""
        self.entries[one.request.id], one.compiling = one, "asked"
        # Equal grammars are compiled once, but no client learns of another's.
        said = repr((one.client, one.request.grammar)).encode()
        return hashlib.blake2b(said, key=_KEY, digest_size=16).hexdigest()
