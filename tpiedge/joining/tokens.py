"""Makes, lists, revokes and checks tokens, which let new workers in. `tpiedge token` and the master share the table of
tokens.

The table holds a hash of each secret. A token of n uses admits n workers. A token is
valid from creation to expiry by the wall clock. The clock may go back by CLOCK_TOLERANCE_S. The lifetime of a token
made before CLOCK_SET_S begins when the clock is set.
"""

import base64
import contextlib
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import msgspec

from tpiedge.errors import TpiedgeError, UserError
from tpiedge.host.addresses import Address, parse_address
from tpiedge.host.private_file import locked, read_private, replace_private
from tpiedge.joining.members import MEMBERS_FILE, Redemption, read_members
from tpiedge.sanitise import RateLimitedLog
from tpiedge.transport.keys import is_key, key_bytes, key_text

CLOCK_SET_S = 1_767_225_600.0  # 2026-01-01 in UTC, before the first tpiedge
CLOCK_TOLERANCE_S = 300.0
DAY_S = 86400.0
_PREFIX = "tpi1"
_SECRET_BYTES = 16
_CHECK_BYTES = 4
_TICKET_DIGITS = 32
#: Times until the year 5138, which calendars can show.
_Time = Annotated[float, msgspec.Meta(ge=0, lt=1e11)]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JoinToken:
    """The master's address and key, and a secret. `text` joins them in one word that no shell changes."""

    master_key: str
    secret: str = field(repr=False)
    address: Address

    @property
    def text(self) -> str:
        # Without brackets, which shells would expand: the port follows the last colon.
        where = f"{self.address.host}:{self.address.port}"
        key = _base32(key_bytes(self.master_key))
        secret = _unbase32(self.secret)
        return f"{_PREFIX}_{key}_{_base32(secret + _check(self.master_key, secret, where))}_{where}"


def parse_token(text: str) -> JoinToken:
    """Reads a token's text. Raises UserError, which does not show the text."""
    prefix, *parts = text.strip().split("_", 3)
    if prefix != _PREFIX:
        raise UserError(
            f"not a token: it starts with {_PREFIX}_ and is one word; 'tpiedge token create' prints one"
        )
    try:
        key, both, where = parts
        raw_key, raw_secret = _unbase32(key), _unbase32(both)
        host, _, port = where.rpartition(":")
        address = parse_address(f"[{host}]:{port}")
        secret, check = raw_secret[:_SECRET_BYTES], raw_secret[_SECRET_BYTES:]
        if len(raw_key) != 32 or not is_key(key_text(raw_key)) or len(check) != _CHECK_BYTES:
            raise ValueError
        if not hmac.compare_digest(check, _check(key_text(raw_key), secret, where)):
            raise ValueError
    except (ValueError, UserError):
        raise UserError(
            "the token is incomplete or was changed on the way: copy the whole word again"
        ) from None
    return JoinToken(key_text(raw_key), _base32(secret), address)


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token at the master. Times are seconds since 1970."""

    id: str
    sha256: Annotated[str, msgspec.Meta(pattern="^[ -~]*$")] = field(repr=False)
    created: _Time
    expires: _Time
    #: Uses left; in the file, all uses. None: unlimited.
    left: int | None

    def started(self, now: float) -> "TokenRecord":
        if self.created >= CLOCK_SET_S or now < CLOCK_SET_S:
            return self
        return replace(self, created=now, expires=now + self.expires - self.created)

    def state(self, now: float) -> Redemption:
        if self.left == 0:
            return "used"
        return "ok" if self.created - CLOCK_TOLERANCE_S <= now < self.expires else "expired"


class TokenStore:
    """The tokens in `folder`. Methods read the file anew, and lock it for changes. `wall_clock` gives seconds since
    1970."""

    def __init__(self, folder: Path, wall_clock: Callable[[], float] = time.time) -> None:
        self._path = folder / "tokens.json"
        self._now = wall_clock
        self._warnings = RateLimitedLog(_log)
        #: The tokens that were read last, and the versions of the files that they were read from.
        self._latest: tuple[TokenRecord, ...] = ()
        self._latest_of: object = None

    def create(self, expires_s: float, uses: int | None = 1) -> tuple[TokenRecord, str]:
        """Returns (token, its secret). The secret is stored nowhere. Raises UserError."""
        if not 1.0 <= expires_s <= 366 * DAY_S:
            raise UserError("a token is valid for 1 second to 366 days")
        if uses is not None and not 1 <= uses <= 10_000:
            raise UserError("a token lets 1 to 10000 workers in (--uses), or 'any' number")
        now, secret = self._now(), _base32(secrets.token_bytes(_SECRET_BYTES))
        record = TokenRecord(secrets.token_hex(4), _hash(secret), now, now + expires_s, uses)
        with locked(self._path):
            known = [one.started(now) for one in self._read()]
            kept = [one for one in known if now <= one.expires + 7 * DAY_S]
            if len(kept) >= 1000:
                raise UserError("1000 tokens exist already: revoke some with 'tpiedge token revoke'")
            self._write([*kept, record])
        return record, secret

    def list(self) -> tuple[tuple[TokenRecord, Redemption], ...]:
        self.start()
        now, spent = self._now(), read_members(self._path.parent).spent
        return tuple((one, one.state(now)) for one in _less(self._read(), spent))

    def start(self) -> None:
        """Starts the life of tokens made before the clock was set."""
        now = self._now()
        if any(one.started(now) is not one for one in self._read()):
            with locked(self._path):
                self._write([one.started(now) for one in self._read()])

    def revoke(self, token_id: str) -> None:
        """Raises UserError for an unknown token."""
        with locked(self._path):
            records = self._read()
            kept = [one for one in records if one.id != token_id]
            if len(kept) == len(records):
                raise UserError(
                    f"there is no token {token_id[:40]}: 'tpiedge token ls' shows those there are"
                )
            self._write(kept)

    def check(self, secret: str, spent: Mapping[str, int]) -> tuple[Redemption, str]:
        """Checks a token's secret. `spent` counts uses by token id. Returns (outcome, token id)."""
        self.start()
        return _state_of(_less(self._read(), spent), secret, self._now())

    def quick_check(self, secret: str) -> Redemption:
        """Checks a secret without a lock. For one thread only. Returns "ok" if the files are unreadable."""
        with contextlib.suppress(TpiedgeError):
            return _state_of(self._unspent(), secret, self._now())[0]
        return "ok"  # `check` will raise

    def accepts_ticket(self, ticket: str, name: str) -> bool:
        """Whether `ticket` of `name` comes from a valid token. For one thread only."""
        try:
            records = self._unspent()
        except TpiedgeError as error:
            self._warnings.warning("cannot see whether %s has a token: %s", name, error)
            return False
        if len(ticket) != _TICKET_DIGITS or not ticket.isascii():
            return False
        now = self._now()
        return any(
            hmac.compare_digest(_ticket(one.sha256, name), ticket)
            for one in records
            if one.started(now).state(now) == "ok"
        )

    def _unspent(self) -> tuple[TokenRecord, ...]:
        # Strangers may call often: unchanged files are not read.
        files = [_version(self._path), _version(self._path.with_name(MEMBERS_FILE))]
        if files != self._latest_of:
            self._latest = _less(self._read(), read_members(self._path.parent).spent)
            self._latest_of = files
        return self._latest

    def _read(self) -> tuple[TokenRecord, ...]:
        values = read_private(self._path)
        try:
            return msgspec.convert([] if values is None else values.get("tokens"), tuple[TokenRecord, ...])
        except (msgspec.ValidationError, UnicodeError):
            raise UserError(f"{self._path} is damaged: delete it, and the tokens in it are void") from None

    def _write(self, records: Sequence[TokenRecord]) -> None:
        replace_private(self._path, {"tokens": msgspec.to_builtins(records)})


def _state_of(records: Sequence[TokenRecord], secret: str, now: float) -> tuple[Redemption, str]:
    hashed, found = _hash(secret), None
    for one in records:  # all of them, so that the time taken tells nothing
        if hmac.compare_digest(one.sha256, hashed):
            found = one
    return ("unknown", "") if found is None else (found.started(now).state(now), found.id)


def _less(records: Sequence[TokenRecord], spent: Mapping[str, int]) -> tuple[TokenRecord, ...]:
    return tuple(
        one if one.left is None else replace(one, left=max(0, one.left - spent.get(one.id, 0)))
        for one in records
    )


def _version(path: Path) -> tuple[int, int, int] | None:
    """Returns a value that changes with the file."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None


def ticket_of(secret: str, name: str) -> str:
    """Returns the ticket by which `name` shows that it has a token."""
    return _ticket(_hash(secret), name)


def _ticket(hashed: str, name: str) -> str:
    return hmac.new(hashed.encode(), b"tpiedge ticket\0" + name.encode(), "sha256").hexdigest()[
        :_TICKET_DIGITS
    ]


def _hash(secret: str) -> str:
    # 128 random bits need no slow hash.
    return hashlib.sha256(b"tpiedge token\0" + secret.encode("utf-8", "surrogatepass")).hexdigest()


def _check(master_key: str, secret: bytes, where: str) -> bytes:
    """Returns a checksum against typing errors."""
    return hashlib.sha256(key_bytes(master_key) + secret + where.encode()).digest()[:_CHECK_BYTES]


def _base32(raw: bytes) -> str:
    return base64.b32encode(raw).decode("ascii").rstrip("=").lower()


def _unbase32(text: str) -> bytes:
    if len(text) > 64:
        raise ValueError("longer than any part of a token")
    raw = base64.b32decode(text.upper() + "=" * (-len(text) % 8))
    if _base32(raw) != text:
        raise ValueError("not the one way to write these bytes")
    return raw
