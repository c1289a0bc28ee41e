"""Quotas of clients. Pure. A client is a text: an API key or an address.

Law: no client has more than half of the total, rounded up, nor more than the others leave.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterator, Sequence


def share_of(total: int) -> int:
    return (total + 1) // 2


def may_have(own: int, taken: int, total: int, count: int = 1) -> bool:
    """Whether a client with `own` may have `count` more, if all clients have `taken` of `total`."""
    return count == 0 or own + count <= min(share_of(total), total - taken)


def too_much(held: Sequence[tuple[str, int]], total: int) -> Iterator[int]:
    """Yields indexes of `held` (client, amount; oldest first) to drop, each the oldest of the largest client, until the
    law holds."""
    of_clients: dict[str, deque[int]] = {}
    for number, (client, _) in enumerate(held):
        of_clients.setdefault(client, deque()).append(number)
    # The oldest index breaks ties.
    most = [(-sum(held[number][1] for number in own), own[0], own) for own in of_clients.values()]
    heapq.heapify(most)
    taken = sum(amount for _, amount in held)
    while most and (taken > total or -most[0][0] > share_of(total)):
        negative, number, own = heapq.heappop(most)
        own.popleft()
        yield number
        taken -= held[number][1]
        if own:
            heapq.heappush(most, (negative + held[number][1], own[0], own))


class Portions:
    """Counts what each client has of `total`."""

    def __init__(self, total: int) -> None:
        self._total = total
        self.taken = 0  # by all clients
        self._by_client: Counter[str] = Counter()

    def of(self, client: str) -> int:
        return self._by_client[client]

    def take(self, client: str, count: int = 1) -> bool:
        """Takes `count` more if the client may have them; returns whether."""
        if not may_have(self.of(client), self.taken, self._total, count):
            return False
        self.leave(client, -count)
        return True

    def leave(self, client: str, count: int = 1) -> None:
        self.taken -= count
        self._by_client[client] -= count
        if not self._by_client[client]:
            del self._by_client[client]
