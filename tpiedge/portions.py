"""What is divided among clients so that none of them can take all of it. Pure.

A client is a text of which nothing else is known here: all that have one API key, or one address.

Law: nobody has more than half of all, rounded up, nor more than the others leave. So each further client that floods
takes half of what is left, at most: while no more clients have some than the total can be halved (seven of 128),
whoever comes gets one.
"""

__all__ = ["Portions", "may_have"]


def may_have(own: int, taken: int, total: int, count: int = 1) -> bool:
    """Whether a client may have `count` more that has `own` of `total`, of which all together, itself too, have
    `taken`. Nothing more it always may, even if others have left less than it has."""
    return count == 0 or own + count <= min((total + 1) // 2, total - taken)


class Portions:
    """Counts what each client has of `total`."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._taken = 0
        self._by_client: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """By all clients."""
        return self._taken

    def of(self, client: str) -> int:
        """How much it has."""
        return self._by_client.get(client, 0)

    def take(self, client: str, count: int = 1) -> bool:
        """Whether it may have `count` more, which it has then."""
        if not may_have(self.of(client), self._taken, self._total, count):
            return False
        self._give(client, count)
        return True

    def leave(self, client: str, count: int = 1) -> None:
        """It has `count` less."""
        self._give(client, -count)

    def _give(self, client: str, count: int) -> None:
        self._taken += count
        own = self.of(client) + count
        if own:
            self._by_client[client] = own
        else:
            self._by_client.pop(client, None)
