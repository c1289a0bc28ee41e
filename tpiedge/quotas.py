"""Limits each client's use of a total. Pure. A client is an API key or an address.

Laws for a client's use after it takes more: 1. The use is at most half of the total, rounded up. 2. The use is at most
the amount that was free before.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterator, Sequence


def quota_of(total: int) -> int:
    return (total + 1) // 2


def within_quota(own: int, taken: int, total: int, count: int = 1) -> bool:
    """Whether a client that uses `own` may use `count` more. `taken` is the use of all clients."""
    return count == 0 or own + count <= min(quota_of(total), total - taken)


def over_quota(held: Sequence[tuple[str, int]], total: int) -> Iterator[int]:
    """Yields the indexes of entries to drop until neither the total nor a quota is exceeded. `held` has pairs of
    client and amount, the oldest first. The client with the largest amount loses its oldest entry."""
    of_clients: dict[str, deque[int]] = {}
    for number, (client, _) in enumerate(held):
        of_clients.setdefault(client, deque()).append(number)
    # The oldest index breaks ties.
    most = [(-sum(held[number][1] for number in own), own[0], own) for own in of_clients.values()]
    heapq.heapify(most)
    taken = sum(amount for _, amount in held)
    while most and (taken > total or -most[0][0] > quota_of(total)):
        negative, number, own = heapq.heappop(most)
        own.popleft()
        yield number
        taken -= held[number][1]
        if own:
            heapq.heappush(most, (negative + held[number][1], own[0], own))


class ClientQuotas:
    """Counts how much of `total` each client uses."""

    def __init__(self, total: int) -> None:
        self._total = total
        self.used = 0  # by all clients
        self._by_client: Counter[str] = Counter()

    def used_by(self, client: str) -> int:
        return self._by_client[client]

    def acquire(self, client: str, count: int = 1) -> bool:
        """Adds `count` if the client's quota allows; returns whether it did."""
        if not within_quota(self.used_by(client), self.used, self._total, count):
            return False
        self.release(client, -count)
        return True

    def release(self, client: str, count: int = 1) -> None:
        self.used -= count
        self._by_client[client] -= count
        if not self._by_client[client]:
            del self._by_client[client]
