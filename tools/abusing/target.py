"""The cluster as those who abuse it see it."""

import random
import socket
from dataclasses import dataclass

from tpiedge.host.addresses import DATA_OFFSET, FILES_OFFSET, PAIRING_OFFSET, Address

_OFFSETS = (0, DATA_OFFSET, FILES_OFFSET, PAIRING_OFFSET)


@dataclass(frozen=True)
class Target:
    """`token` lets any number of members in; `pack` is the id of what the master serves."""

    address: Address
    http: Address
    model: str
    api_key: str
    master_key: str
    token: str
    pack: str

    @property
    def ports(self) -> tuple[Address, ...]:
        return (*(self.address.beside(offset) for offset in _OFFSETS), self.http)

    def connect(self, address: Address, source: str, timeout_s: float = 5.0) -> socket.socket:
        """A connection from another loopback address. Raises OSError."""
        return socket.create_connection((address.host, address.port), timeout_s, source_address=(source, 0))


def anywhere(rng: random.Random) -> str:
    """An address of this computer, as if it were another machine's."""
    return f"127.0.0.{rng.randint(2, 250)}"
