"""Stores a worker's trusted masters, and probes a silent master."""

from pathlib import Path
from typing import Literal, TypeAlias

from tpiedge.errors import UserError
from tpiedge.host.addresses import Address, parse_address, resolve_all
from tpiedge.host.private_file import locked, read_private, replace_private
from tpiedge.joining.connecting import who_is_at
from tpiedge.transport.keys import is_key
from tpiedge.transport.probe import passes_large_packets

PathState: TypeAlias = Literal["moved", "small MTU", "unknown"]
"""The result of `probe_path`: "moved" if the master has another address, "small MTU" if large packets get lost."""


class TrustedMasters:
    """Stores the keys of the latest 16 masters in `folder`/masters.json. Methods raise UserError."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "masters.json"

    def key_of(self, address: Address) -> str | None:
        key = (read_private(self._path) or {}).get(str(address))
        return key if isinstance(key, str) and is_key(key) else None

    def remember(self, address: Address, key: str) -> None:
        with locked(self._path):
            known = read_private(self._path) or {}
            known.pop(str(address), None)
            latest = [*known.items()][-15:]  # the addresses of a master that moves add up
            replace_private(self._path, {**dict(latest), str(address): key})

    def masters(self) -> dict[Address, str]:
        """Returns the keys by address, the latest first."""
        known = reversed((read_private(self._path) or {}).items())
        return {parse_address(place): key for place, key in known if isinstance(key, str) and is_key(key)}


def probe_path(named: Address, known: Address, key: str) -> PathState:
    """Looks for the master with `key` at addresses of `named` other than `known`. If it is not there, tests large
    packets to `known`. Blocks."""
    try:
        found = resolve_all(named)
    except UserError:  # a name that is not found shows no move
        found = ()
    others = [address for address in found[:16] if address != known]
    stays = known in found and others and who_is_at(known, key) != "nobody"
    if not stays and any(who_is_at(address, key) == "the master" for address in others):
        return "moved"
    return "small MTU" if passes_large_packets(known.host, known.port, 2.0) is False else "unknown"
