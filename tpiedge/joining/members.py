"""Keeps the cluster's members, the revoked keys and the uses of tokens.

An admission takes effect when it is on disk. A revocation takes effect immediately. One write admits a member and
records the member's use of a token.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from tpiedge.errors import DiskFull, UnknownWorker, UserError
from tpiedge.host.private_file import locked, read_private, replace_private
from tpiedge.joining.identity import peer_name
from tpiedge.transport.keys import is_key

Redemption = Literal["ok", "expired", "unknown", "used"]

MEMBERS_FILE = "members.json"

NEW_KEY = (
    "to let that machine in again, delete key.json in its worker's state folder (~/.local/state/tpiedge/worker, or "
    "worker in its --state), and join as a new one"
)


@dataclass(frozen=True, slots=True)
class _KeyHolder:
    key: str
    host: str

    @property
    def name(self) -> str:
        return peer_name(self.key)


@dataclass(frozen=True, slots=True)
class KnownWorker(_KeyHolder):
    joined: float  # seconds since 1970
    how: str  # token or code
    token: str = ""  # the spent token's id, or ""


@dataclass(frozen=True, slots=True)
class Revoked(_KeyHolder):
    when: float
    token: str = ""


@dataclass(frozen=True, slots=True)
class MemberTable:
    """An immutable table. Each change returns a new one."""

    members: tuple[KnownWorker, ...] = ()
    revoked: tuple[Revoked, ...] = ()

    def member(self, key: str) -> KnownWorker | None:
        return next((member for member in self.members if member.key == key), None)

    def is_revoked(self, key: str) -> bool:
        return any(one.key == key for one in self.revoked)

    @property
    def spent(self) -> Counter[str]:
        known: tuple[KnownWorker | Revoked, ...] = (*self.members, *self.revoked)
        return Counter(one.token for one in known if one.token)

    def admit(self, member: KnownWorker) -> "MemberTable":
        """Returns the table with `member`. Raises UserError for a revoked key."""
        if self.is_revoked(member.key):
            raise UserError(f"the key of {member.name} was revoked: {NEW_KEY}")
        known = self.member(member.key)
        if known is not None:
            member = replace(member, token=known.token or member.token)
        others = tuple(one for one in self.members if one.key != member.key)
        if len(others) >= 1_000:
            raise UserError("the cluster has 1000 workers already: revoke some with 'tpiedge nodes revoke'")
        return MemberTable((*others, member), self.revoked)

    def called(self, name: str, hosts: Mapping[str, str]) -> str:
        """Returns the peer name of the worker called `name`. `hosts` maps connected workers' peer names to their
        computers. Raises UserError, UnknownWorker."""
        if name in {one.name for one in self.members} | {one.name for one in self.revoked}:
            return name
        found = [one.name for one in self.members if hosts.get(one.name, one.host) == name]
        if not found:
            raise _unknown(name)
        if len(found) > 1:
            known = ", ".join(one if one in hosts else f"{one} (away)" for one in found)
            raise UserError(f"{len(found)} workers are called {name[:80]!r}: say which of {known}")
        if found[0] not in hosts:
            raise UserError(
                f"the worker {name[:80]!r} is away: if it is the one that you mean, say {found[0]}"
            )
        return found[0]

    def revoke(self, name: str, when: float) -> "tuple[MemberTable, Revoked]":
        """Returns the table without the worker, and the worker's Revoked entry. Raises UnknownWorker."""
        for again in self.revoked:
            if again.name == name:
                return self, again
        for found in self.members:
            if found.name == name:
                gone = Revoked(found.key, found.host, when, found.token)
                return self.without((gone,)), gone
        raise _unknown(name)

    def without(self, gone: Iterable[Revoked]) -> "MemberTable":
        known = {one.key for one in self.revoked}
        new = {one.key: one for one in gone if one.key not in known}
        kept = tuple(one for one in self.members if one.key not in new)
        return MemberTable(kept, (*self.revoked, *new.values())[-10_000:])


class MemberJournal:
    """The table in `folder`/members.json. Thread-safe.

    `admit`, `join` and `revoke` first read other processes' changes. They block for the disk and raise UserError or
    DiskFull.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / MEMBERS_FILE
        self._lock = threading.Lock()
        self.table = read_members(folder)

    def admit(self, member: KnownWorker) -> None:
        with locked(self._path):
            self._write(self._read().admit(member))

    def join(
        self, member: KnownWorker, check: Callable[[Mapping[str, int]], tuple[Redemption, str]]
    ) -> Redemption:
        """Calls `check` with the number of uses of each token. If the outcome is "ok", admits `member`. Returns the
        outcome. Raises UserError."""
        with locked(self._path):
            table = self._read()
            outcome, token = check(table.spent)
            if outcome == "ok":
                self._write(table.admit(replace(member, token=token)))
        return outcome

    def revoke(self, name: str, when: float, at_once: Callable[[Revoked], None] | None = None) -> Revoked:
        """Revokes a worker. Calls `at_once` before the file is written."""
        with self._lock:
            self.table, gone = self.table.revoke(name, when)
        if at_once is not None:
            at_once(gone)
        try:
            with locked(self._path):
                self._write(self._read())
        except (UserError, DiskFull) as error:
            words = (
                f"{gone.name} is revoked only until the master ends: {error}; then type 'tpiedge nodes revoke "
                f"{gone.name}' again"
            )
            raise type(error)(words) from None
        return gone

    def _read(self) -> MemberTable:
        return read_members(self._folder).without(self.table.revoked)

    def _write(self, table: MemberTable) -> None:
        replace_private(self._path, msgspec.to_builtins(table))
        with self._lock:
            self.table = table.without(self.table.revoked)  # some may have been revoked during the write


def read_members(folder: Path) -> MemberTable:
    """Reads the table in `folder`. Raises UserError for a damaged file."""
    path = folder / MEMBERS_FILE
    values = read_private(path) or {"members": [], "revoked": []}
    try:
        table = msgspec.convert(values, MemberTable)
        known = all(is_key(one.key) for one in (*table.members, *table.revoked))
        if known and values.keys() >= {"members", "revoked"}:
            return table
    except (msgspec.ValidationError, UnicodeError):
        pass  # reported like other damage
    raise UserError(
        f"{path} is damaged: restore it from a backup; or delete it, void the tokens that were used ('tpiedge token "
        "revoke'), and workers join again"
    )


def _unknown(name: str) -> UnknownWorker:
    return UnknownWorker(f"there is no worker {name[:80]!r}: 'tpiedge nodes --all' shows those there are")
