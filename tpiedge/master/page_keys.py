"""Derives the keys of KV pages from the master's secrets. Pure.

Only a master with the same secret finds a page by its name, for the same weights, arithmetic, format and version. A
seal opens only files that the same machine wrote for the same master. Machines never store seals."""

import hashlib
from dataclasses import dataclass, field

import msgspec


@dataclass(frozen=True)
class PageSecrets:
    """`parked` is new in every master's process. `kept` outlives it; None: the master keeps no pages."""

    parked: bytes = field(repr=False)
    kept: bytes | None = field(default=None, repr=False)

    def name_key(self, *facts: object) -> bytes:
        """Returns the key of names for pages that differ with `facts`."""
        return _derived(self.kept or self.parked, "names", *facts)

    def kept_seal(self, machine: str) -> bytes:
        """Returns "" if no pages are kept."""
        return b"" if self.kept is None else _derived(self.kept, "kept seal", machine)

    def parked_seal(self, machine: str) -> bytes:
        return _derived(self.parked, "parked seal", machine)

    @property
    def scope_key(self) -> bytes | None:
        """The key of clients' scopes, if pages are kept."""
        return None if self.kept is None else _derived(self.kept, "scopes")


def _derived(secret: bytes, label: str, *facts: object) -> bytes:
    # Lengths are encoded, so that no two lists of facts have the same bytes.
    data = msgspec.msgpack.encode(facts)
    return hashlib.blake2b(data, digest_size=32, key=secret, person=label.encode()).digest()
