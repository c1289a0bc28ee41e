import re
import shlex
import stat
import subprocess
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpiedge.errors import UserError
from tpiedge.host.addresses import Address
from tpiedge.joining.members import KnownWorker, MemberJournal
from tpiedge.joining.tokens import CLOCK_TOLERANCE_S, JoinToken, TokenStore, parse_token, ticket_of
from tpiedge.transport.keys import CurveKeys

KEYS, OTHER = CurveKeys.generate(), CurveKeys.generate().public
T0 = 1_800_000_000.0
HOUR = 3600.0
ADDRESSES = [
    Address("192.168.1.20", 7070),
    Address("pi.local", 1),
    Address("my_host", 65000),
    Address("fe80::1", 7070),
    Address("fe80::1%eth0", 7070),
]


SECRET = "mfrggzdfmztwq2lknnwg23tpoa"


def made(address: Address = ADDRESSES[0]) -> JoinToken:
    return JoinToken(KEYS.public, SECRET, address)


class Now:
    seconds = T0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def store(tmp_path: Path, now: Now) -> TokenStore:
    return TokenStore(tmp_path, now)


@pytest.mark.parametrize("address", ADDRESSES, ids=str)
def test_token_is_one_shell_word_and_parses_back(address: Address) -> None:
    token = made(address)
    assert shlex.quote(token.text) == token.text
    shown = subprocess.run(
        ["sh", "-c", f"printf %s {token.text}"], capture_output=True, text=True, check=True
    )
    assert parse_token(f" {shown.stdout}\n") == token
    assert re.fullmatch(r"tpi1_[a-z2-7]{52}_[a-z2-7]{32}_.*", token.text)


def test_token_secret_is_never_shown(store: TokenStore) -> None:
    token = made()
    record, secret = store.create(3600.0)
    assert parse_token(replace(token, secret=secret).text).secret == secret
    assert SECRET not in repr(token)
    assert record.sha256 not in repr(record)
    with pytest.raises(UserError) as caught:
        parse_token(token.text[:-3])
    assert SECRET[:8] not in str(caught.value)


@given(st.integers(5, 110), st.sampled_from("abz27_:.A"))
def test_a_changed_token_is_refused(place: int, letter: str) -> None:
    text = made().text
    place = min(place, len(text) - 1)
    changed = text[:place] + letter + text[place + 1 :]
    if changed != text:
        with pytest.raises(UserError, match="token"):
            parse_token(changed)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a token: it starts with tpi1_"),
        ("192.168.1.20:7070", "not a token: it starts with tpi1_"),
        ("tpi1_", "the token is incomplete"),
        (made().text[:40], "the token is incomplete"),
        (made().text[:-3], "the token is incomplete"),
    ],
    ids=["nothing", "address", "beginning", "key", "without its end"],
)
def test_partial_token_is_reported_as_incomplete(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_token(text)


@pytest.mark.parametrize(
    ("later_s", "outcome"),
    [
        (0.0, "ok"),
        (HOUR - 1, "ok"),
        (HOUR, "expired"),
        (1e9, "expired"),
        (-CLOCK_TOLERANCE_S, "ok"),
        (-CLOCK_TOLERANCE_S - 1, "expired"),
    ],
)
def test_a_token_lives_from_its_creation_to_its_expiry(store, now, later_s, outcome):
    _, secret = store.create(HOUR)
    now.seconds += later_s
    assert store.check(secret, {})[0] == outcome


def test_token_made_with_an_unset_clock_starts_when_it_is_set(store: TokenStore, now: Now) -> None:
    now.seconds = 60.0
    record, secret = store.create(HOUR, None)
    ticket = ticket_of(secret, "w-1")
    for seconds, outcome in [(90.0, "ok"), (90.0 + HOUR, "expired")]:
        now.seconds = seconds
        assert store.check(secret, {})[0] == outcome
        assert store.accepts_ticket(ticket, "w-1") == (outcome == "ok")
    assert store.list()[0][0] == record
    # Its life begins once.
    for seconds, outcome in [(T0, "ok"), (T0 + HOUR - 1, "ok"), (T0 + HOUR, "expired"), (60.0, "expired")]:
        now.seconds = seconds
        assert store.check(secret, {})[0] == outcome
        assert store.accepts_ticket(ticket, "w-1") == (outcome == "ok")


def test_ticket_is_valid_for_one_name_and_while_its_token_is(store: TokenStore, now: Now) -> None:
    record, secret = store.create(HOUR)
    ticket = ticket_of(secret, "w-1")
    assert secret not in ticket
    assert record.sha256 not in ticket
    assert store.accepts_ticket(ticket, "w-1")
    assert not store.accepts_ticket(ticket, "w-2")
    for other in ("", ticket[:-1], "é" * len(ticket), ticket_of("another", "w-1")):
        assert not store.accepts_ticket(other, "w-1")
    now.seconds += HOUR
    assert not store.accepts_ticket(ticket, "w-1")
    now.seconds = T0
    store.revoke(record.id)
    assert not store.accepts_ticket(ticket, "w-1")


@pytest.mark.parametrize(("expires_s", "uses"), [(0.0, 1), (1e9, 1), (HOUR, 0), (HOUR, 10**6)])
def test_token_expiry_and_uses_are_limited(store: TokenStore, expires_s: float, uses: int) -> None:
    with pytest.raises(UserError, match=r"a token (is|lets)"):
        store.create(expires_s, uses)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 2 * HOUR)), max_size=30))
def test_token_is_never_used_more_often_than_allowed(
    store: TokenStore, now: Now, steps: list[tuple[int, float]]
) -> None:
    now.seconds = T0
    for record, _ in store.list():
        store.revoke(record.id)
    secrets = [store.create(HOUR, uses)[1] for uses in (1, 2, 3)]
    spent, accepted = Counter[str](), [0, 0, 0, 0]
    for which, after in steps:
        now.seconds = T0 + after
        outcome, token_id = store.check([*secrets, "wrong"][which], spent)
        spent[token_id] += outcome == "ok"
        accepted[which] += outcome == "ok"
        assert outcome != "ok" or after < HOUR
    assert accepted[3] == 0
    assert all(count <= uses for count, uses in zip(accepted, (1, 2, 3), strict=False))


def test_token_file_is_private_and_holds_no_secret(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "master", lambda: T0)
    record, secret = store.create(HOUR)
    path = tmp_path / "master" / "tokens.json"
    assert secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = TokenStore(tmp_path / "master", lambda: T0)
    assert other.list() == ((record, "ok"),)
    journal, joining = MemberJournal(tmp_path / "master"), partial(store.check, secret)
    assert other.accepts_ticket(ticket_of(secret, "w-1"), "w-1")
    assert journal.join(KnownWorker(KEYS.public, "pi", T0, "token"), joining) == "ok"
    assert other.list() == ((replace(record, left=0), "used"),)
    assert not other.accepts_ticket(ticket_of(secret, "w-1"), "w-1")
    assert MemberJournal(tmp_path / "master").join(KnownWorker(OTHER, "pi", T0, "token"), joining) == "used"
    assert secret not in (tmp_path / "master" / "members.json").read_text()
    store.revoke(record.id)
    assert other.list() == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"tokens": 1}',
        '{"tokens": [{}]}',
        '{"tokens": [{"id": "a", "sha256": "b", "created": NaN, "expires": 1, "left": 1}]}',
        '{"tokens": [{"id": "a", "sha256": "é", "created": 0, "expires": 1, "left": 1}]}',
        '{"tokens": [{"\\ud800": 1}]}',
        "[" * 100_000,
    ],
)
def test_damaged_token_file_is_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UserError, match=r"tokens\.json is damaged"):
        TokenStore(tmp_path).list()
