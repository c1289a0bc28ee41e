import json
import os
import stat
from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.host.addresses import Address
from tpiedge.joining.identity import load_or_create_keys, peer_name
from tpiedge.joining.members import KnownWorker, MemberJournal, MemberTable
from tpiedge.transport.keys import CurveKeys
from tpiedge.worker.masters import TrustedMasters

A, B = CurveKeys.generate(), CurveKeys.generate()


def test_a_key_pair_is_made_once_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "worker"
    keys = load_or_create_keys(folder)
    assert load_or_create_keys(folder) == keys
    assert stat.S_IMODE((folder / "key.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert os.listdir(folder) == ["key.json"]


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


def test_the_journal_keeps_members_and_revoked_keys(tmp_path: Path) -> None:
    journal = MemberJournal(tmp_path)
    journal.admit(KnownWorker(A.public, "pi", 1.0, "token"))
    journal.admit(KnownWorker(B.public, "pi", 2.0, "code"))
    gone = journal.revoke(peer_name(A.public), 3.0)
    assert gone.key == A.public
    again = MemberJournal(tmp_path)
    assert again.table == journal.table
    assert [one.name for one in again.table.members] == [peer_name(B.public)]
    assert again.table.is_revoked(A.public)
    with pytest.raises(UserError, match="was revoked"):
        again.admit(KnownWorker(A.public, "pi", 4.0, "token"))
    with pytest.raises(UserError, match="no worker 'nobody'"):
        again.revoke("nobody", 5.0)


def test_worker_is_looked_up_by_its_current_name() -> None:
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


@pytest.mark.parametrize(
    "text",
    [
        '{"members": 1, "revoked": []}',
        '{"members": [{}], "revoked": []}',
        '{"members": [{"\\ud800": 1}]}',
        "{}x",
    ],
)
def test_damaged_members_file_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "members.json").write_text(text)
    (tmp_path / "members.json").chmod(0o600)
    with pytest.raises(UserError, match=r"members\.json is damaged"):
        MemberJournal(tmp_path)


def test_a_worker_remembers_the_latest_addresses(tmp_path: Path) -> None:
    book = TrustedMasters(tmp_path)
    for day in range(32):
        book.remember(Address(f"10.0.0.{day}", 7070), A.public)
    latest = [Address(f"10.0.0.{day}", 7070) for day in range(16, 32)]
    assert list(book.masters()) == latest[::-1]
