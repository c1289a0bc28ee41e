"""Connections of which it is not known yet, or no more, whose they are: how many of them stay, and for how long.

Laws:
1. A connection is a stranger from the moment at which it is accepted until its peer is introduced, and again once
   that peer is admitted no more.
2. At most `each` strangers of one address stay, and `limit` in all. Where one more comes, the one goes that has been a
   stranger for longest: of that address, or of the address that has most. So a newcomer always has some time.
3. A stranger goes when its time is over.
4. A connection whose peer is known never goes for the sake of a stranger.
"""

from collections import Counter
from dataclasses import dataclass

from tpiedge.transport.cutting import TcpConnection


@dataclass(frozen=True, slots=True)
class _Stay:
    address: str
    until: float


class Strangers:
    """Who goes is no stranger here any more: cut the connection. Times are seconds on the caller's clock."""

    def __init__(self, limit: int, each: int) -> None:
        self._limit = limit
        self._each = each
        self._stays: dict[TcpConnection, _Stay] = {}  # the longest here first
        self._crowds: Counter[str] = Counter()

    def __contains__(self, connection: TcpConnection) -> bool:
        return connection in self._stays

    def came(self, connection: TcpConnection, address: str, until: float) -> TcpConnection | None:
        """A connection from an IP address is a stranger, perhaps again, until `until`. Returns who goes for it."""
        self.left(connection)
        self._stays[connection] = _Stay(address, until)
        self._crowds[address] += 1
        if self._crowds[address] <= self._each:
            if len(self._stays) <= self._limit:
                return None
            address = self._crowds.most_common(1)[0][0]
        gone = next(one for one, stay in self._stays.items() if stay.address == address)
        self.left(gone)
        return gone

    def left(self, connection: TcpConnection) -> None:
        """The connection is no stranger, or ended. Does nothing where it was none."""
        stay = self._stays.pop(connection, None)
        if stay is not None:
            self._crowds[stay.address] -= 1
            if not self._crowds[stay.address]:
                del self._crowds[stay.address]

    def overdue(self, now: float) -> tuple[TcpConnection, ...]:
        """Those whose time is over."""
        late = tuple(one for one, stay in self._stays.items() if stay.until <= now)
        for connection in late:
            self.left(connection)
        return late
