import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tpiedge.cli import keys as verb
from tpiedge.cli import master_lines
from tpiedge.cli.master_parts import only_master
from tpiedge.errors import UserError
from tpiedge.host.private_file import replace_private

LAN = "192.168.1.10"


@pytest.fixture(autouse=True)
def _lan(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (verb, master_lines):
        monkeypatch.setattr(module, "outgoing_host", lambda: LAN)


def run(state: Path, *arguments: str) -> Result:
    ended = CliRunner().invoke(verb.keys, [*arguments, "--state", str(state)])
    if ended.exception is not None:
        raise ended.exception
    return ended


def test_keys_are_added_listed_and_revoked(tmp_path: Path) -> None:
    file = str(tmp_path / "master" / "api-keys")
    assert "make one with 'tpiedge keys add NAME'" in run(tmp_path, "ls").stdout
    key = run(tmp_path, "add", "phone").stdout.strip()
    made = json.loads(run(tmp_path, "add", "laptop", "--json").stdout)
    url = f"http://{LAN}:8080/#key={made['key']}"
    assert made == {"name": "laptop", "key": made["key"], "url": url, "file": file}
    assert Path(file).read_text() == f"phone: {key}\nlaptop: {made['key']}\n"
    assert run(tmp_path, "ls").stdout.split() == ["key", "------", "phone", "laptop"]
    assert json.loads(run(tmp_path, "revoke", "phone", "--json").stdout) == {"revoked": "phone", "file": file}
    assert run(tmp_path, "revoke", "laptop").stdout == "laptop is revoked\n"
    assert json.loads(run(tmp_path, "ls", "--json").stdout) == {"file": file, "keys": []}
    with pytest.raises(UserError, match="no key 'phone'"):
        run(tmp_path, "revoke", "phone")


def test_key_has_a_label_on_a_terminal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    verb.keys(["add", "phone", "--state", str(tmp_path)], standalone_mode=False)
    _, _, key = (tmp_path / "master" / "api-keys").read_text().strip().partition(": ")
    assert capsys.readouterr().out == f"the key, shown once:  {key}\n"


@pytest.mark.parametrize(
    ("note", "url", "says"),
    [
        (None, f"http://{LAN}:8080", "start 'tpiedge master MODEL --http 0.0.0.0:8080' first"),
        (
            {"killed": True, "http": "10.0.0.5:9000", "url": "https://10.0.0.5:9000"},
            f"http://{LAN}:8080",
            "start 'tpiedge master MODEL",
        ),
        (
            {"http": "10.0.0.5:9000", "url": "https://10.0.0.5:9000"},
            "https://10.0.0.5:9000",
            "",
        ),
        # It may have started before the network.
        ({"http": "0.0.0.0:9000", "url": "http://127.0.0.1:9000"}, f"http://{LAN}:9000", ""),
        (
            {"http": "[::1]:8080", "url": "http://[::1]:8080"},
            f"http://{LAN}:8080",
            "phones cannot use the running master with this key: start 'tpiedge master MODEL --http 0.0.0.0:8080 "
            "--api-key-file {file}' first",
        ),
        (
            {"http": f"{LAN}:9000", "url": f"http://{LAN}:9000", "api_key_file": ""},
            f"http://{LAN}:8080",
            "phones cannot use the running master with this key: start",
        ),
    ],
    ids=["no master", "a killed master", "in the network", "anywhere", "loopback", "a master without keys"],
)
def test_address_with_the_key_is_the_running_masters(
    tmp_path: Path, note: dict[str, object] | None, url: str, says: str
) -> None:
    file = tmp_path / "keys"
    if note is not None:
        replace_private(tmp_path / "master" / "admin.json", {"api_key_file": str(file)} | note)
    killed = note is None or "killed" in note
    with nullcontext() if killed else only_master(tmp_path / "master"):
        ended = run(tmp_path, "add", "phone")
    assert f"on a phone, scan this or open:  {url}/#key={ended.stdout.strip()}\n" in ended.stderr
    assert says.format(file=file) in ended.stderr
    assert ("first" in ended.stderr) == bool(says)
