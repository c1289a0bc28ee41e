import logging

import pytest

from tpiedge.api.keys import AdminKey, ApiKeys, add_key, key_names, revoke_key
from tpiedge.errors import UserError


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"

    def write(text, mode=0o600):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return path

    return write


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("\n# a note: of many words\r\n  phone:  sk-1  \r\n", ["sk-1"]),
        ("phone:sk-1\nphone: sk-2", ["sk-1", "sk-2"]),
        ("old laptop: a:b#c", ["a:b#c"]),
        ("\ufeff# für die Küche\nKüche: sk-1", ["sk-1"]),
    ],
)
def test_key_file_lines_are_parsed(key_file, text, keys):
    found = ApiKeys((), key_file(text))
    assert found.needed
    assert all(found.have(key.encode()) for key in keys)
    assert not any(found.have(other) for other in (b"", b"phone", b"three", text.encode()))


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("sk-hush", 0o640, "chmod 600"),
        ("sk-hush", 0o604, "chmod 600"),
        ("", 0o600, "no API key is in"),
        ("# sk-hush\n", 0o600, "no API key is in"),
        ("a\nsk-hush sk-hush", 0o600, "line 2: a key has no spaces"),
        (": sk-hush", 0o600, "line 1: there is no name"),
        ("sk-hush:", 0o600, "line 1: an API key must have"),
        ("sk-hush" + "x" * 4096, 0o600, "line 1: an API key must have"),
        ("a: sk-hush\n\nb: sk-hush", 0o600, "line 3: this key is in an earlier line, too"),
        ("sk-hush\u00fc", 0o600, "line 1: an API key must have"),
        (b"sk-hush\xff", 0o600, "no text in UTF-8"),
        (b"sk-hush\0x", 0o600, "line 1: an API key must have"),
    ],
)
def test_bad_key_file_error_is_one_line_without_the_key(key_file, text, mode, says):
    path = key_file(text, mode)
    with pytest.raises(UserError, match=says) as raised:
        ApiKeys((), path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "hush" not in str(raised.value)


def test_missing_key_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        ApiKeys((), tmp_path / "none")
    with pytest.raises(UserError, match="is not a file"):
        ApiKeys((), tmp_path)


def test_changed_key_file_applies_immediately(key_file, caplog):
    caplog.set_level(logging.INFO)
    keys = ApiKeys(["given"], key_file("phone: sk-phone\nlaptop: sk-laptop"))
    assert keys.have(b"sk-phone")
    key_file("laptop: sk-laptop\nattic: sk-attic\n")
    assert [keys.have(key) for key in (b"sk-phone", b"sk-laptop", b"sk-attic", b"given")] == [
        False,
        True,
        True,
        True,
    ]
    assert [record.getMessage().partition(" are now: ")[2] for record in caplog.records] == ["laptop, attic"]
    assert "sk-" not in caplog.text


def test_key_file_turned_bad_keeps_old_keys_and_warns_once(key_file, caplog):
    path = key_file("sk-phone")
    keys = ApiKeys((), path)
    for spoil in (lambda: key_file("sk-other two"), lambda: path.chmod(0o644), path.unlink):
        caplog.clear()
        spoil()
        assert [keys.have(key) for key in (b"sk-phone", b"sk-other", b"sk-phone")] == [True, False, True]
        (record,) = caplog.records
        assert "the API keys of before still count" in record.getMessage()
    key_file("sk-other")
    assert [keys.have(key) for key in (b"sk-phone", b"sk-other")] == [False, True]


def test_emptied_key_file_refuses_every_key(key_file, caplog):
    caplog.set_level(logging.INFO)
    keys = ApiKeys((), key_file("sk-phone"))
    key_file("# none\n")
    assert not keys.have(b"sk-phone")
    assert keys.needed
    assert "all that were are refused" in caplog.text


def test_added_and_revoked_keys_count_at_once_and_other_lines_stay(key_file):
    path = key_file("# family\n\nphone: sk-1\n sk-2 ")
    found = ApiKeys((), path)
    key = add_key(path, "old laptop")
    assert found.have(key.encode())
    assert key_names(path) == ["phone", "", "old laptop"]
    revoke_key(path, "phone")
    assert [found.have(one) for one in (b"sk-1", b"sk-2", key.encode())] == [False, True, True]
    assert path.read_text() == f"# family\n\n sk-2 \nold laptop: {key}\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_first_key_makes_the_file_and_its_names_are_checked(tmp_path):
    path = tmp_path / "state" / "api-keys"
    assert key_names(path) == []
    add_key(path, "phone")
    for name in ("", " a", "a:b", "#a", "a\nb", "x" * 101):
        with pytest.raises(UserError, match="1 to 100 printable characters, no colon"):
            add_key(path, name)
    with pytest.raises(UserError, match="there is a key 'phone' already"):
        add_key(path, "phone")
    with pytest.raises(UserError, match="without a name are revoked by taking their lines out"):
        revoke_key(path, "")
    with pytest.raises(UserError, match="has no key 'laptop': 'tpiedge keys ls' lists"):
        revoke_key(path, "laptop")
    assert key_names(path) == ["phone"]


def test_code_of_a_link_expires_after_an_hour():
    now = [0.0]
    admin = AdminKey("secret", lambda: now[0])
    assert admin.key_for(b"") is None, "there is no link yet"
    code = admin.new_code().encode()
    now[0] = 3600.0
    assert admin.key_for(code) is None
    code = admin.new_code().encode()
    now[0] += 3599.0
    assert admin.key_for(code) == "secret"
