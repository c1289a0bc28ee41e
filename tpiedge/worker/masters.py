"""The masters that a worker trusts, and where one is that is silent.

A master is known by its key. Its name may mean another address after a while, as where addresses are leased, or
several of which it is at one; and where a part of the way has a smaller MTU and tells nobody, its small messages come
and its large ones do not.
"""

from pathlib import Path
from typing import Literal, TypeAlias

from tpiedge.errors import UserError
from tpiedge.host.addresses import Address, parse_address, resolve_all
from tpiedge.host.private_file import locked, read_private, replace_private
from tpiedge.joining.connecting import who_is_at
from tpiedge.transport.keys import is_key
from tpiedge.transport.probe import passes_large_packets

WayState: TypeAlias = Literal["moved", "narrow", "unknown"]
"""The master is at another address; large packets do not reach it; or neither is known."""

_ANSWER_S = 3.0


class TrustedMasters:
    """`folder`/masters.json maps addresses to public keys, from tokens or confirmed codes, the latest 16. Raises
    UserError if the file cannot be read or written."""

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
        """The keys of all, by the addresses that they had, the one joined latest first."""
        known = reversed((read_private(self._path) or {}).items())
        return {parse_address(place): key for place, key in known if isinstance(key, str) and is_key(key)}


def look_for_master(named: Address, known: Address, key: str) -> WayState:
    """How the way is to the master of that `key`, which a user calls `named` and who was last at `known`. Blocks as
    long as the resolver does, and some seconds."""
    try:
        found = resolve_all(named)
    except UserError:  # the name means nothing now: it stays where it was
        found = ()
    others = [address for address in found[:16] if address != known]
    stays = known in found and others and who_is_at(known, key, _ANSWER_S) != "nobody"
    if not stays and any(who_is_at(address, key, _ANSWER_S) == "the master" for address in others):
        return "moved"
    return "narrow" if passes_large_packets(known.host, known.port, 2.0) is False else "unknown"
