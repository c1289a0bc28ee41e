"""`tpiedge token`: with and without a master, from two processes at once, and never a secret where none belongs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.redeeming import redeem
from tpiedge.cli.token import token
from tpiedge.errors import UserError
from tpiedge.joining.identity import load_or_create_keys
from tpiedge.joining.tokens import parse_token


def say(tmp_path: Path, *arguments: str) -> str:
    """What the command prints on standard output. Raises what it raises."""
    result = CliRunner().invoke(token, [*arguments, "--state", str(tmp_path)], catch_exceptions=False)
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.thin
def test_a_token_is_printed_alone_and_works(tmp_path: Path) -> None:
    made = parse_token(say(tmp_path, "create", "--host", "192.168.1.20"))
    assert str(made.address) == "192.168.1.20:7070"
    assert made.master_key == load_or_create_keys(tmp_path / "master").public
    assert redeem(tmp_path / "master", made.secret) == "ok"
    assert [one["state"] for one in json.loads(say(tmp_path, "ls", "--json"))] == ["used"]


def test_lists_and_revokes(tmp_path: Path) -> None:
    made = parse_token(say(tmp_path, "create", "--uses", "any", "--expires", "7d"))
    (entry,) = json.loads(say(tmp_path, "ls", "--json"))
    assert (entry["state"], entry["uses_left"]) == ("usable", None)
    assert entry["expires"] - entry["created"] == pytest.approx(7 * 86400)
    shown = say(tmp_path, "ls")
    assert entry["id"] in shown
    assert made.secret not in shown
    say(tmp_path, "revoke", entry["id"])
    assert json.loads(say(tmp_path, "ls", "--json")) == []
    assert redeem(tmp_path / "master", made.secret) == "unknown"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "--expires", "soon"], "not a time"),
        (["create", "--expires", "0s"], "1 second to 366 days"),
        (["create", "--uses", "-1"], "neither a number nor"),
        (["create", "--uses", "0"], "1 to 10000"),
        (["create", "--host", "a b"], "not an address"),
        (["revoke", "abcd"], "no token abcd"),
    ],
)
def test_bad_input_leaves_nothing(tmp_path: Path, arguments: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        say(tmp_path, *arguments)
    assert not (tmp_path / "master" / "tokens.json").exists()
