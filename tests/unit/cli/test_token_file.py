import json

import pytest
from click.testing import CliRunner

from tests.redeeming import redeem
from tpiedge.cli.master_parts import only_master
from tpiedge.cli.token import await_token, invitation, offered
from tpiedge.cli.token import token as verb
from tpiedge.errors import UserError
from tpiedge.host.addresses import Address
from tpiedge.joining.tokens import TokenStore, parse_token
from tpiedge.transport.keys import CurveKeys

KEY = CurveKeys.generate().public
HERE = Address("192.168.1.20", 7070)


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


def test_token_file_admits_any_worker_until_the_master_ends(tmp_path, state):
    path = tmp_path / "token"
    with offered(path, state, KEY, HERE):
        token = parse_token(await_token(path, 0.0))
        assert (token.master_key, token.address) == (KEY, HERE)
        assert [redeem(state, token.secret) for _ in range(5)] == ["ok"] * 5
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()
    assert redeem(state, token.secret) == "unknown"


def test_unreadable_or_unwritable_token_file_is_an_error(tmp_path, state):
    with pytest.raises(
        UserError, match=r"no token in .*token within 0 s: is 'tpiedge master --token-file' running"
    ):
        await_token(tmp_path / "token", 0.0)
    with pytest.raises(UserError, match="cannot read the token"):
        await_token(tmp_path, 0.0)
    nowhere = offered(tmp_path / "no" / "token", state, KEY, HERE)
    with pytest.raises(UserError, match="cannot write the token"), nowhere:
        pass
    assert TokenStore(state).list() == ()


@pytest.fixture
def left_behind(tmp_path, state):
    with offered(tmp_path / "token", state, KEY, HERE):
        kept = {path: path.read_bytes() for path in (tmp_path / "token", *state.glob("*.json"))}
    for path, data in kept.items():
        path.write_bytes(data)
        path.chmod(0o600)
    return parse_token(await_token(tmp_path / "token", 0.0))


def test_killed_masters_token_is_void_after_a_restart(tmp_path, state, left_behind):
    assert redeem(state, left_behind.secret) == "ok"
    with invitation(state):
        assert redeem(state, left_behind.secret) == "unknown"
    with offered(tmp_path / "token", state, KEY, HERE):
        token = parse_token(await_token(tmp_path / "token", 0.0))
        assert redeem(state, token.secret) == "ok"
    assert TokenStore(state).list() == ()


def test_restart_keeps_other_tokens(state, left_behind):
    _, secret = TokenStore(state).create(3600.0)
    (one,) = [record.id for record, _ in TokenStore(state).list() if record.left is None]
    TokenStore(state).revoke(one)  # by hand, before the master came back
    for _ in range(2):
        with invitation(state):
            assert len(TokenStore(state).list()) == 2
    assert redeem(state, secret) == "ok"


def test_invitation_is_for_one_worker_until_the_master_ends(state):
    for _ in range(3):
        with invitation(state) as secret:
            assert [outcome for _, outcome in TokenStore(state).list()] == ["ok"]
            assert redeem(state, secret) == "ok"
            assert redeem(state, secret) == "used"
        assert TokenStore(state).list() == ()


def test_token_create_with_host_needs_no_master(tmp_path):
    note = tmp_path / "master" / "admin.json"
    note.parent.mkdir(mode=0o700)
    note.write_text("damaged")
    note.chmod(0o600)

    def create(*flags):
        return CliRunner().invoke(verb, ["create", "--state", str(tmp_path), *flags])

    assert "is damaged" in str(create().exception)
    made = create("--host", "desk:7000")
    assert made.exception is None
    assert parse_token(made.stdout.strip()).address == Address("desk", 7000)
    note.write_text('{"workers": "192.168.1.9:7171"}')
    with only_master(note.parent):
        assert parse_token(create().stdout.strip()).address == Address("192.168.1.9", 7171)
    # A killed master left the file.
    assert parse_token(create().stdout.strip()).address.port == 7070


def test_tokens_are_listed_and_revoked(tmp_path):
    def said(*words):
        done = CliRunner().invoke(verb, [*words, "--state", str(tmp_path)])
        assert done.exception is None
        return done.stdout

    said("create", "--uses", "2")
    said("create", "--uses", "any")
    ids = [one["id"] for one in json.loads(said("ls", "--json"))]
    title, _, *rows = [line.split()[:3] for line in said("ls").splitlines()]
    assert (title, rows) == (["token", "state", "uses"], [[ids[0], "usable", "2"], [ids[1], "usable", "any"]])
    assert said("revoke", ids[0]) == f"token {ids[0]} is revoked\n"
    (left,) = json.loads(said("ls", "--json"))
    assert (left["id"], left["state"], left["uses_left"]) == (ids[1], "usable", None)
