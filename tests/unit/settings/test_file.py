"""Files: values keep their lines; what is no settings file is refused in words."""

from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.settings.file import Entry, find_settings, parse_settings, read_settings

PATH = Path("/etc/t.toml")


def test_every_value_has_its_line():
    file = parse_settings(
        PATH, '[run]\n\nnodes = 3\n"shares" = "1,2,3"\n[ bench . decode ]\ntokens = 5 # few\n'
    )
    assert file.get("run", "nodes") == Entry(3, 3)
    assert file.get("run", "shares") == Entry("1,2,3", 4)
    assert file.get("bench.decode", "tokens") == Entry(5, 6)
    assert file.get("run", "threads") is None
    assert file.place("bench.decode") == "/etc/t.toml:5"
    assert file.place("nowhere") == "/etc/t.toml"


def test_dotted_keys_are_tables():
    file = parse_settings(PATH, "run.nodes = 3\nbench.decode.tokens = 5\n")
    assert file.get("run", "nodes") == Entry(3, 1)
    assert file.get("bench.decode", "tokens") == Entry(5, 2)


def test_an_empty_table_is_seen():
    assert set(parse_settings(PATH, "[runn]\n").tables) == {"runn"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[run\nx = 1", "line 1"),
        (b"[run]\nnodes = 1\nnodes = 2\n", "line 3"),
        (b"\xff", "UTF-8"),
        (b"#" * 2**21, "1 MiB"),
    ],
    ids=["unclosed", "twice", "binary", "large"],
)
def test_what_is_no_settings_file(tmp_path, content, expected):
    path = tmp_path / "t.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=expected) as caught:
        read_settings(path)
    assert str(path) in str(caught.value)


def test_which_file_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("tpiedge.settings.file.user_config_path", lambda _: tmp_path / "home")
    assert find_settings(None, {}) is None
    named, own = tmp_path / "named.toml", tmp_path / "home" / "config.toml"
    own.parent.mkdir()
    for path in (named, own):
        path.write_text("")
    assert find_settings(None, {}).path == own
    assert find_settings(None, {"TPIEDGE_CONFIG": str(named)}).path == named
    given = tmp_path / "given.toml"
    given.write_text("")
    assert find_settings(given, {"TPIEDGE_CONFIG": str(named)}).path == given


def test_a_named_file_must_exist(tmp_path):
    with pytest.raises(UserError, match=r"^cannot read the settings file .*: No such file"):
        find_settings(tmp_path / "no.toml", {})
    with pytest.raises(UserError, match=r"^TPIEDGE_CONFIG: cannot read"):
        find_settings(None, {"TPIEDGE_CONFIG": str(tmp_path / "no.toml")})
