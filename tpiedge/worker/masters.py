"""The masters that a worker trusts, by their keys, and the search for a silent one."""

from pathlib import Path
from typing import Literal, TypeAlias

from tpiedge.errors import UserError
from tpiedge.host.addresses import Address, parse_address, resolve_all
from tpiedge.host.private_file import locked, read_private, replace_private
from tpiedge.joining.connecting import who_is_at
from tpiedge.transport.keys import is_key
from tpiedge.transport.probe import passes_large_packets

WayState: TypeAlias = Literal["moved", "narrow", "unknown"]
"""The master has another address; large packets vanish, as after a smaller MTU; or neither."""


class TrustedMasters:
    """Keeps the latest 16 addresses and public keys in `folder`/masters.json. Raises UserError if that fails."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "masters.json"

    def key_of(self, address: Address) -> str | None:
        key = (read_private(self._path) or {}).get(str(address))
        return key if isinstance(key, str) and is_key(key) else None

    def remember(self, address: Address, key: str) -> None:
        with locked(self._path):
            known = read_private(self._path) or {}
            known.pop(str(address), None)
            latest = [*known.items()][-15:]  # those of a master that moves add up
            replace_private(self._path, {**dict(latest), str(address): key})

    def masters(self) -> dict[Address, str]:
        """Returns the keys by address, the latest first."""
        known = reversed((read_private(self._path) or {}).items())
        return {parse_address(place): key for place, key in known if isinstance(key, str) and is_key(key)}


def look_for_master(named: Address, known: Address, key: str) -> WayState:
    """Looks for the master with that `key`, called `named`, last at `known`. Blocks for some seconds."""
    try:
        found = resolve_all(named)
    except UserError:  # without a name it stays where it was
        found = ()
    others = [address for address in found[:16] if address != known]
    stays = known in found and others and who_is_at(known, key) != "nobody"
    if not stays and any(who_is_at(address, key) == "the master" for address in others):
        return "moved"
    return "narrow" if passes_large_packets(known.host, known.port, 2.0) is False else "unknown"
