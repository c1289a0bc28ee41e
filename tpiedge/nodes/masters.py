"""Which master a worker trusts at which address: learnt from a token or a confirmed code, kept for restarts."""

from pathlib import Path

from tpiedge.nodes.addresses import Address
from tpiedge.nodes.private_file import locked, read_private, replace_private
from tpiedge.transport.keys import is_key

__all__ = ["MasterBook"]


class MasterBook:
    """`folder`/masters.json: address to public key. Raises UserError where the file cannot be read or written."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "masters.json"

    def key_of(self, address: Address) -> str | None:
        key = (read_private(self._path) or {}).get(str(address))
        return key if isinstance(key, str) and is_key(key) else None

    def remember(self, address: Address, key: str) -> None:
        with locked(self._path):
            replace_private(self._path, {**(read_private(self._path) or {}), str(address): key})

    def addresses(self) -> tuple[str, ...]:
        """All known ones, the latest last."""
        return tuple(read_private(self._path) or {})
