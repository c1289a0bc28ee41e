"""Tokens that let a new worker in: the text that people carry, and the table of those the master has given out.

Laws:
1. The table holds a hash of each secret, never the secret: who reads the file cannot join.
2. A token of n uses lets n workers in; those it has let in are counted where they are members (`members`).
3. A token works from its creation to its expiry by the wall clock. A clock that was set back by up to CLOCK_TOLERANCE_S
   before the creation is forgiven; one set back further makes it expired, since its age is unknown then.
   A wall clock before CLOCK_SET_S has not been set since the board got power: a token that was made by such a clock
   has its whole life from the first moment at which a clock that is set was seen.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tpiedge.errors import UserError
from tpiedge.host.addresses import Address, parse_address
from tpiedge.transport.keys import is_key, key_bytes, key_text

Redemption = Literal["ok", "expired", "unknown", "used"]

CLOCK_SET_S = 1_767_225_600.0  # 2026-01-01 in UTC, when there was no tpiedge yet
CLOCK_TOLERANCE_S = 300.0
MAX_TOKENS = 1000
MAX_USES = 10_000
MAX_EXPIRY_S = 366 * 86400.0
_PREFIX = "tpi1"
_SECRET_BYTES = 16
_CHECK_BYTES = 4
_TICKET_DIGITS = 32


@dataclass(frozen=True, slots=True)
class JoinToken:
    """What a worker needs to join: where the master is, who it is, and a secret. `text` is one word for any shell."""

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
    """Raises UserError, which does not show the text, where it is not what `JoinToken.text` made."""
    parts = text.strip().split("_", 3)
    if parts[0] == _PREFIX and len(parts) < 4:
        raise _damaged()
    if parts[0] != _PREFIX:
        raise UserError(
            f"not a token: it starts with {_PREFIX}_ and is one word; 'tpiedge token create' prints one"
        )
    _, key, secret, where = parts
    try:
        raw_key, raw_secret = _unbase32(key), _unbase32(secret)
        host, _, port = where.rpartition(":")
        address = parse_address(f"[{host}]:{port}")
    except (ValueError, UserError):
        raise _damaged() from None
    secret_only, check = raw_secret[:_SECRET_BYTES], raw_secret[_SECRET_BYTES:]
    if len(raw_key) != 32 or not is_key(key_text(raw_key)) or len(check) != _CHECK_BYTES:
        raise _damaged()
    if not hmac.compare_digest(check, _check(key_text(raw_key), secret_only, where)):
        raise _damaged()
    return JoinToken(key_text(raw_key), _base32(secret_only), address)


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token as the master knows it. Times are seconds since 1970; `left` None: as often as one likes. In the file,
    `left` is what it was made with: `TokenTable.less` takes off what was spent."""

    id: str
    hashed: str = field(repr=False)
    created: float
    expires: float
    left: int | None

    @property
    def waits(self) -> bool:
        """Whether its life begins only once the clock is set."""
        return self.created < CLOCK_SET_S

    def started(self, now: float) -> "TokenRecord":
        """The record with a life that has begun, if the clock is set by `now`."""
        if not self.waits or now < CLOCK_SET_S:
            return self
        return replace(self, created=now, expires=now + self.expires - self.created)

    def state(self, now: float) -> Redemption:
        """ "ok": it would let a worker in."""
        if self.left == 0:
            return "used"
        return "ok" if self.created - CLOCK_TOLERANCE_S <= now < self.expires else "expired"


@dataclass(frozen=True, slots=True)
class TokenTable:
    """All tokens that may matter still; every method gives a new table."""

    records: tuple[TokenRecord, ...] = ()

    def started(self, now: float) -> "TokenTable":
        """The table in which the tokens that waited for a clock that is set live from `now` on, if it is by then."""
        return TokenTable(tuple(record.started(now) for record in self.records))

    def create(self, now: float, expires_s: float, uses: int | None) -> "tuple[TokenTable, TokenRecord, str]":
        """A new token: the table, its record, and the secret, which is nowhere else. Raises UserError."""
        if not 1.0 <= expires_s <= MAX_EXPIRY_S:
            raise UserError("a token lives from 1 second to 366 days")
        if uses is not None and not 1 <= uses <= MAX_USES:
            raise UserError(f"a token lets 1 to {MAX_USES} workers in (--uses), or 'any' number")
        kept = tuple(record for record in self.started(now).records if not _stale(record, now))
        if len(kept) >= MAX_TOKENS:
            raise UserError(f"{MAX_TOKENS} tokens exist already: revoke some with 'tpiedge token revoke'")
        secret = _base32(secrets.token_bytes(_SECRET_BYTES))
        record = TokenRecord(secrets.token_hex(4), _hash(secret), now, now + expires_s, uses)
        return TokenTable((*kept, record)), record, secret

    def revoke(self, token_id: str) -> "TokenTable":
        """The table without that token. Raises UserError where there is none."""
        kept = tuple(record for record in self.records if record.id != token_id)
        if len(kept) == len(self.records):
            raise UserError(f"there is no token {token_id[:40]}: 'tpiedge token ls' shows those there are")
        return TokenTable(kept)

    def less(self, spent: Mapping[str, int]) -> "TokenTable":
        """The table with the uses that are left after `spent` of each token, by its id."""
        return TokenTable(
            tuple(
                record
                if record.left is None
                else replace(record, left=max(0, record.left - spent.get(record.id, 0)))
                for record in self.records
            )
        )

    def judge(self, secret: str, now: float) -> tuple[Redemption, str]:
        """Whether the secret lets a worker in, and the id of its token or ""."""
        record = self.started(now)._find(secret)
        return ("unknown", "") if record is None else (record.state(now), record.id)

    def takes(self, ticket: str, name: str, now: float) -> bool:
        """Whether a token that lives has the secret from which `ticket_of` made the ticket of the worker `name`."""
        if len(ticket) != _TICKET_DIGITS or not ticket.isascii():
            return False
        return any(
            hmac.compare_digest(_ticket(record.hashed, name), ticket)
            for record in self.started(now).records
            if record.state(now) == "ok"
        )

    def _find(self, secret: str) -> TokenRecord | None:
        """Looks at every record, so that the time taken tells nothing."""
        hashed = _hash(secret)
        found = None
        for record in self.records:
            if hmac.compare_digest(record.hashed, hashed):
                found = record
        return found


def ticket_of(secret: str, name: str) -> str:
    """What the worker `name`, whose key its connection proves, shows before it may say the secret."""
    return _ticket(_hash(secret), name)


def _ticket(hashed: str, name: str) -> str:
    return hmac.new(hashed.encode(), b"tpiedge ticket\0" + name.encode(), "sha256").hexdigest()[
        :_TICKET_DIGITS
    ]


def _stale(record: TokenRecord, now: float) -> bool:
    """Useless for so long that its record is not kept."""
    return record.expires + 7 * 86400.0 < now


def _hash(secret: str) -> str:
    # 128 random bits need no slow hash.
    return hashlib.sha256(b"tpiedge token\0" + secret.encode("utf-8", "surrogatepass")).hexdigest()


def _check(master_key: str, secret: bytes, where: str) -> bytes:
    """Tells a typing error from a wrong token."""
    return hashlib.sha256(key_bytes(master_key) + secret + where.encode()).digest()[:_CHECK_BYTES]


def _base32(raw: bytes) -> str:
    return base64.b32encode(raw).decode("ascii").rstrip("=").lower()


def _unbase32(text: str) -> bytes:
    """Raises ValueError."""
    if not text.isascii() or len(text) > 64:
        raise ValueError("not base32")
    try:
        raw = base64.b32decode(text.upper() + "=" * (-len(text) % 8))
    except binascii.Error:
        raise ValueError("not base32") from None
    if _base32(raw) != text:
        raise ValueError("not the one way to write these bytes")
    return raw


def _damaged() -> UserError:
    return UserError("the token is incomplete or was changed on the way: copy the whole word again")
