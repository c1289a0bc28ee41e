"""Files that only their owner reads: the key pair, the members, the masters."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.host.addresses import Address, parse_address
from tpiedge.joining.identity import fingerprint, load_or_create_keys, peer_name
from tpiedge.joining.members import KnownWorker, MemberJournal, MemberTable
from tpiedge.transport.keys import CurveKeys
from tpiedge.worker.trusted_masters import MOST_MASTERS, TrustedMasters

A, B = CurveKeys.generate(), CurveKeys.generate()


def test_a_key_pair_is_made_once_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "worker"
    keys = load_or_create_keys(folder)
    assert load_or_create_keys(folder) == keys
    assert stat.S_IMODE((folder / "key.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert os.listdir(folder) == ["key.json"]


def test_two_that_start_at_once_have_the_same_key(tmp_path: Path) -> None:
    found: list[CurveKeys] = []
    threads = [threading.Thread(target=lambda: found.append(load_or_create_keys(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    keys = load_or_create_keys(tmp_path)
    (tmp_path / "key.json").chmod(mode)
    with pytest.raises(
        UserError, match=r"key\.json can be read or changed by other users: chmod 600"
    ) as caught:
        load_or_create_keys(tmp_path)
    assert keys.secret not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        json.dumps({"public": A.public, "secret": B.secret}).encode(),
        b'{"public": 1, "secret": 2}',
    ],
)
def test_a_damaged_key_is_refused_and_kept(tmp_path: Path, values: bytes) -> None:
    path = tmp_path / "key.json"
    path.write_bytes(values)
    path.chmod(0o600)
    with pytest.raises(UserError, match=r"key\.json is damaged") as caught:
        load_or_create_keys(tmp_path)
    assert B.secret not in str(caught.value)
    assert path.read_bytes() == values


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key.json").mkdir()
    with pytest.raises(UserError, match="is not a file"):
        load_or_create_keys(tmp_path)


def test_names_follow_from_keys() -> None:
    assert fingerprint("k" * 40) == "dc4c5d17d972b666"
    assert peer_name("k" * 40) == "w-dc4c5d17d972b666"


def test_the_journal_keeps_members_and_revoked_keys(tmp_path: Path) -> None:
    journal = MemberJournal(tmp_path)
    journal.admit(KnownWorker(A.public, "pi", 1.0, "token"))
    journal.admit(KnownWorker(B.public, "pi", 2.0, "code"))
    gone = journal.revoke(peer_name(A.public), 3.0)
    assert gone.key == A.public
    again = MemberJournal(tmp_path)
    assert again.table == journal.table
    assert again.allowed() == {B.public: peer_name(B.public)}
    assert again.table.is_revoked(A.public)
    with pytest.raises(UserError, match="was revoked"):
        again.admit(KnownWorker(A.public, "pi", 4.0, "token"))
    with pytest.raises(UserError, match="no worker 'nobody'"):
        again.revoke("nobody", 5.0)


def test_a_worker_is_called_as_it_calls_itself_now_and_never_by_another_ones_key() -> None:
    one, other = peer_name(A.public), peer_name(B.public)
    table = MemberTable().admit(KnownWorker(A.public, "pi", 1.0, "token"))
    table = table.admit(KnownWorker(B.public, "pi", 2.0, "code"))
    with pytest.raises(UserError, match="2 workers are called 'pi': say which of w-"):
        table.called("pi", {one: "pi"})
    assert table.called("attic", {one: "attic", other: "pi"}) == one
    assert table.called("pi", {one: "attic", other: "pi"}) == other
    with pytest.raises(UserError, match="no worker 'cellar'"):
        table.called("cellar", {one: "attic", other: "pi"})
    with pytest.raises(UserError, match=f"is away: if it is the one that you mean, say {other}"):
        table.called("pi", {one: "attic"})
    assert table.called(other, {one: other, other: one}) == other  # whatever they say they are called
    table, _ = table.revoke(one, 3.0)
    assert table.called(one, {other: one}) == one
    assert table.revoke(one, 4.0)[0] == table


@pytest.mark.parametrize("text", ['{"members": 1, "revoked": []}', '{"members": [{}], "revoked": []}', "{}x"])
def test_a_damaged_journal_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "members.json").write_text(text)
    (tmp_path / "members.json").chmod(0o600)
    with pytest.raises(UserError, match=r"members\.json is damaged"):
        MemberJournal(tmp_path)


def test_a_worker_remembers_the_latest_addresses(tmp_path: Path) -> None:
    """Of a master that gets another one every day."""
    book = TrustedMasters(tmp_path)
    for day in range(2 * MOST_MASTERS):
        book.remember(Address(f"10.0.0.{day}", 7070), A.public)
    latest = [Address(f"10.0.0.{day}", 7070) for day in range(MOST_MASTERS, 2 * MOST_MASTERS)]
    assert list(book.masters()) == latest[::-1]


def test_a_worker_remembers_its_masters(tmp_path: Path) -> None:
    book = TrustedMasters(tmp_path)
    place = Address("10.0.0.1", 7070)
    assert book.key_of(place) is None
    book.remember(place, A.public)
    book.remember(Address("::1", 7070), B.public)
    assert TrustedMasters(tmp_path).key_of(place) == A.public
    assert list(book.masters().items()) == [(Address("::1", 7070), B.public), (place, A.public)]
    book.remember(place, B.public)
    assert next(iter(book.masters().items())) == (place, B.public)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("pi", "pi", 7070),
        ("pi:1", "pi", 1),
        ("10.0.0.1:65000", "10.0.0.1", 65000),
        ("[::1]:5", "::1", 5),
        ("[fe80::1%eth0]", "fe80::1%eth0", 7070),
        ("::1", "::1", 7070),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = parse_address(text, 7070)
    assert address == Address(host, port)
    assert parse_address(str(address)) == address


def test_a_bare_port_is_a_port_where_there_is_a_host_for_it() -> None:
    assert parse_address("9000", 7070, "0.0.0.0") == Address("0.0.0.0", 9000)
    assert parse_address("pi", 7070, "0.0.0.0") == Address("pi", 7070)
    with pytest.raises(UserError, match="not an address"):
        parse_address("90000", 7070, "0.0.0.0")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "pi:",
        "pi:0",
        "pi:65533",
        "pi:x",
        "pi:\u0661",
        "a b",
        "[::1",
        "[::1]5",
        "-x:1",
        "tcp://a:1",
        "a/b",
        "x" * 300,
        "9000",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UserError, match="not an address"):
        parse_address(text, 7070)
