"""Which workers belong to the cluster: those admitted, and the keys that never get in again.

Laws:
1. A key is admitted, revoked, or neither; never both.
2. Names follow from keys, so no two members have the same.
3. What `MemberJournal` says is on the disk already.
"""

import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.host.private_file import locked, read_private, replace_private
from tpiedge.joining.identity import peer_name
from tpiedge.transport.keys import is_key

__all__ = ["KnownWorker", "MemberJournal", "MemberTable", "Revoked"]

MAX_REVOKED = 10_000
MAX_MEMBERS = 1_000


@dataclass(frozen=True, slots=True)
class KnownWorker:
    """An admitted worker. `host`: its computer's name; `joined`: seconds since 1970; `how`: token or code."""

    key: str
    host: str
    joined: float
    how: str

    @property
    def name(self) -> str:
        return peer_name(self.key)


@dataclass(frozen=True, slots=True)
class Revoked:
    """A key that was thrown out."""

    key: str
    host: str
    when: float

    @property
    def name(self) -> str:
        return peer_name(self.key)


@dataclass(frozen=True, slots=True)
class MemberTable:
    """Every method gives a new table."""

    members: tuple[KnownWorker, ...] = ()
    revoked: tuple[Revoked, ...] = ()

    def member(self, key: str) -> KnownWorker | None:
        return next((member for member in self.members if member.key == key), None)

    def is_revoked(self, key: str) -> bool:
        return any(one.key == key for one in self.revoked)

    def admit(self, member: KnownWorker) -> "MemberTable":
        """The table with `member`, in place of what was known of its key. Raises UserError for a revoked key."""
        if self.is_revoked(member.key):
            raise UserError(f"the key of {member.name} was revoked: give that worker a new one")
        others = tuple(one for one in self.members if one.key != member.key)
        if len(others) >= MAX_MEMBERS:
            raise UserError(
                f"the cluster has {MAX_MEMBERS} workers already: revoke some with 'tpiedge nodes revoke'"
            )
        return MemberTable((*others, member), self.revoked)

    def revoke(self, name: str, when: float) -> "tuple[MemberTable, Revoked]":
        """The table without the worker `name` (its peer name, or its host where one worker has it).

        Raises UserError.
        """
        found = [one for one in self.members if name in (one.name, one.host)]
        if not found:
            raise UserError(f"there is no worker {name[:80]!r}: 'tpiedge nodes' shows those there are")
        if len(found) > 1:
            names = ", ".join(one.name for one in found)
            raise UserError(f"{len(found)} workers are called {name[:80]!r}: say which of {names}")
        gone = Revoked(found[0].key, found[0].host, when)
        kept = tuple(one for one in self.members if one is not found[0])
        return MemberTable(kept, (*self.revoked[-MAX_REVOKED + 1 :], gone)), gone


class MemberJournal:
    """The table in `folder`/members.json. Any thread; other processes that change it are taken into account."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "members.json"
        self._lock = threading.Lock()
        self._table = self._read()

    @property
    def table(self) -> MemberTable:
        return self._table

    def allowed(self) -> dict[str, str]:
        """Public key to peer name, as a hub wants it."""
        return {member.key: member.name for member in self._table.members}

    def admit(self, member: KnownWorker) -> None:
        """Raises UserError for a revoked key or a file that cannot be written."""
        with self._lock, locked(self._path):
            self._write(self._read().admit(member))

    def revoke(self, name: str, when: float) -> Revoked:
        """Raises UserError where there is no such worker."""
        with self._lock, locked(self._path):
            table, gone = self._read().revoke(name, when)
            self._write(table)
        return gone

    def _write(self, table: MemberTable) -> None:
        replace_private(
            self._path,
            {
                "members": [asdict(member) for member in table.members],
                "revoked": [asdict(one) for one in table.revoked],
            },
        )
        self._table = table

    def _read(self) -> MemberTable:
        values = read_private(self._path) or {"members": [], "revoked": []}
        members, revoked = values.get("members"), values.get("revoked")
        if not isinstance(members, list) or not isinstance(revoked, list):
            raise self._damaged()
        return MemberTable(tuple(map(self._member, members)), tuple(map(self._revoked, revoked)))

    def _member(self, values: object) -> KnownWorker:
        match values:
            case {
                "key": str(key),
                "host": str(host),
                "joined": float() | int() as joined,
                "how": str(how),
            } if is_key(key):
                return KnownWorker(key, host, float(joined), how)
        raise self._damaged()

    def _revoked(self, values: object) -> Revoked:
        match values:
            case {"key": str(key), "host": str(host), "when": float() | int() as when} if is_key(key):
                return Revoked(key, host, float(when))
        raise self._damaged()

    def _damaged(self) -> UserError:
        return UserError(
            f"{self._path} is damaged: restore it from a backup; or delete it, and workers join again"
        )
