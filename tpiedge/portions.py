"""What is divided among clients so that none of them can take all of it. Pure.

A client is a text of which nothing else is known here: all that have one API key, or one address.

Law: nobody has more than half of all, rounded up, nor more than the others leave. So each further client that floods
takes half of what is left, at most: while no more clients have some than the total can be halved (seven of 128),
whoever comes gets one.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterator, Sequence


def share_of(total: int) -> int:
    return (total + 1) // 2


def may_have(own: int, taken: int, total: int, count: int = 1) -> bool:
    """Whether a client may have `count` more that has `own` of `total`, of which all together, itself too, have
    `taken`. Nothing more it always may, even if others have left less than it has."""
    return count == 0 or own + count <= min(share_of(total), total - taken)


def too_much(held: Sequence[tuple[str, int]], total: int, share: int) -> Iterator[int]:
    """Which of `held`, each a client and how much of `total`, the oldest first, are to go so that no client has more
    than `share` and all have no more than the total: one after the other the oldest of the client that has most."""
    of_clients: dict[str, deque[int]] = {}
    for number, (client, _) in enumerate(held):
        of_clients.setdefault(client, deque()).append(number)
    # The number of the oldest tells clients apart, and which goes first of two that have as much.
    most = [(-sum(held[number][1] for number in own), own[0], own) for own in of_clients.values()]
    heapq.heapify(most)
    taken = sum(amount for _, amount in held)
    while most and (taken > total or -most[0][0] > share):
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
        """Whether it may have `count` more, which it has then."""
        if not may_have(self.of(client), self.taken, self._total, count):
            return False
        self.leave(client, -count)
        return True

    def leave(self, client: str, count: int = 1) -> None:
        self.taken -= count
        self._by_client[client] -= count
        if not self._by_client[client]:
            del self._by_client[client]
