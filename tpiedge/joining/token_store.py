"""The table of tokens in the master's state folder, shared by `tpiedge token` and a running master."""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.host.private_file import locked, read_private, replace_private
from tpiedge.joining.members import MEMBERS_FILE, read_members
from tpiedge.joining.tokens import Redemption, TokenRecord, TokenTable

DAY_S = 86400.0
_END_OF_TIME_S = 1e11  # the year 5138: calendars take it


class TokenStore:
    """Every call sees the file as it is now, under a lock where it changes it. `wall_clock`: seconds since 1970.

    Who was let in stands beside it, in members.json.
    """

    def __init__(self, folder: Path, wall_clock: Callable[[], float] = time.time) -> None:
        self._path = folder / "tokens.json"
        self._now = wall_clock
        #: What `takes` has read, and of which files.
        self._living = TokenTable()
        self._read_of: object = None

    def create(self, expires_s: float = DAY_S, uses: int | None = 1) -> tuple[TokenRecord, str]:
        """A new token and its secret. Raises UserError."""
        with locked(self._path):
            table, record, secret = self._read().create(self._now(), expires_s, uses)
            self._write(table)
        return record, secret

    def list(self) -> tuple[tuple[TokenRecord, Redemption], ...]:
        """Each token with what would become of it now."""
        self.start()
        now, table = self._now(), self._unspent()
        return tuple((record, record.state(now)) for record in table.records)

    def start(self) -> None:
        """Lets the tokens that waited for a clock that is set live from now on, if it is."""
        table, now = self._read(), self._now()
        if table.started(now) != table:
            with locked(self._path):
                self._write(self._read().started(now))

    def revoke(self, token_id: str) -> None:
        """Raises UserError where there is none."""
        with locked(self._path):
            self._write(self._read().revoke(token_id))

    def judge(self, secret: str, spent: Mapping[str, int]) -> tuple[Redemption, str]:
        """Whether the secret lets a worker in where so many uses of each token are spent, and its token's id or "".

        MemberJournal.join spends.
        """
        self.start()
        return self._read().less(spent).judge(secret, self._now())

    def takes(self, ticket: str, name: str) -> bool:
        """Whether the worker `name` knows the secret of a token that lives. For one thread.

        Strangers may ask without end, so the files are read only when they have changed.
        """
        files = [_version(self._path), _version(self._path.with_name(MEMBERS_FILE))]
        if files != self._read_of:
            self._living = self._unspent()
            self._read_of = files
        return self._living.takes(ticket, name, self._now())

    def _unspent(self) -> TokenTable:
        """The tokens less what the members, now or once, have spent of them."""
        return self._read().less(read_members(self._path.parent).spent)

    def _read(self) -> TokenTable:
        values = read_private(self._path)
        records = [] if values is None else values.get("tokens")
        if not isinstance(records, list):
            raise self._damaged()
        return TokenTable(tuple(self._record(record) for record in records))

    def _write(self, table: TokenTable) -> None:
        records: list[object] = [
            {
                "id": one.id,
                "sha256": one.hashed,
                "created": one.created,
                "expires": one.expires,
                "left": one.left,
            }
            for one in table.records
        ]
        replace_private(self._path, {"tokens": records})

    def _record(self, values: object) -> TokenRecord:
        match values:
            case {
                "id": str(token_id),
                "sha256": str(hashed),
                "created": float() | int() as created,
                "expires": float() | int() as expires,
                "left": int() | None as left,
            } if 0 <= created < _END_OF_TIME_S and 0 <= expires < _END_OF_TIME_S and hashed.isascii():
                return TokenRecord(token_id, hashed, float(created), float(expires), left)
        raise self._damaged()

    def _damaged(self) -> UserError:
        return UserError(f"{self._path} is damaged: delete it, and the tokens in it are void")


def _version(path: Path) -> tuple[int, int, int] | None:
    """Another one for every file that replaces it; None where there is none."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None
