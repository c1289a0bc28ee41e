"""The masters that a worker trusts: the key at each address, from a token or a confirmed code, kept for restarts."""

from pathlib import Path
from typing import Final

from tpiedge.host.addresses import Address, parse_address
from tpiedge.host.private_file import locked, read_private, replace_private
from tpiedge.transport.keys import is_key

MOST_MASTERS: Final = 16
"""Addresses that are remembered, the latest: those of a master that moves add up."""


class TrustedMasters:
    """`folder`/masters.json maps addresses to public keys. Raises UserError if the file cannot be read or written."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "masters.json"

    def key_of(self, address: Address) -> str | None:
        key = (read_private(self._path) or {}).get(str(address))
        return key if isinstance(key, str) and is_key(key) else None

    def remember(self, address: Address, key: str) -> None:
        with locked(self._path):
            known = read_private(self._path) or {}
            known.pop(str(address), None)
            latest = [*known.items()][1 - MOST_MASTERS :]
            replace_private(self._path, {**dict(latest), str(address): key})

    def masters(self) -> dict[Address, str]:
        """The keys of all, by the addresses that they had, the one joined latest first."""
        known = reversed((read_private(self._path) or {}).items())
        return {parse_address(place): key for place, key in known if isinstance(key, str) and is_key(key)}
