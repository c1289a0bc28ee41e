import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tpiedge.cli import service, service_command
from tpiedge.cli.main import cli
from tpiedge.cli.options import usage_words
from tpiedge.cli.service_unit import ServiceUnit

OWN = str(Path(sys.executable).with_name("tpiedge"))
Tpiedge = Callable[..., Result]


@pytest.fixture
def tpiedge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tpiedge:
    """Runs the command in `tmp_path` as a user who is not root, with settings of its own."""
    for name in [name for name in os.environ if name.startswith(("TPIEDGE_", "SUDO_"))]:
        monkeypatch.delenv(name)
    for kind in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(service, "_BOOTED", tmp_path / "none")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return lambda *words, **variables: CliRunner().invoke(
        cli, ["service", *words], env=variables, standalone_mode=False
    )


def words_of(done: Result) -> str:
    assert done.exception is not None
    return usage_words(done.exception) if hasattr(done.exception, "format_message") else str(done.exception)


def line(text: str, key: str) -> str:
    (found,) = [one.partition("=")[2] for one in text.splitlines() if one.startswith(f"{key}=")]
    return found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("worker --connect pi", "worker {own} --wait 86400 --connect pi"),
        ("worker --wait 9 --model-dir . --model-dir /", "worker {own} --model-dir {here} --model-dir / --wait 9"),
        ("worker --token tpi1_x", "worker {own} --token-file {here}/config/tpiedge/service-worker.secret --wait 86400"),
        ("worker --state s --cache /c", "worker --state {here}/s --cache /c --wait 86400"),
        ("--config a.toml worker", "worker {own} --config {here}/a.toml --wait 86400"),
        ("worker --config a.toml", "worker {own} --config {here}/a.toml --wait 86400"),
        ("master demo --journal", "master {own} --token-file {here}/state/tpiedge/master/service-token --journal demo"),
        ("master a.gguf --token-file t", "master {own} --token-file {here}/t {here}/a.gguf"),
        ("master --model demo --token-file /t --alias '$b %'",
         'master {own} --model demo --alias "$$b %%" --token-file /t'),
        (
            "master demo --token-file /t --api-key k1 --api-key k2",
            "master {own} --api-key-file {here}/config/tpiedge/service-master.secret --token-file /t demo",
        ),
    ],
)  # fmt: skip
def test_unit_has_the_flags_with_absolute_paths_and_without_secrets(
    given: str, words: str, tpiedge: Tpiedge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.toml").touch()
    (tmp_path / "a.gguf").touch()
    monkeypatch.setattr(service_command, "find_model", lambda *_: None)
    done = tpiedge("install", "--print", *shlex.split(given))
    assert done.exception is None, done.output
    own = f"--state {tmp_path}/state/tpiedge --cache {tmp_path}/cache/tpiedge"
    assert line(done.output, "ExecStart") == f"{OWN} {words.format(own=own, here=tmp_path)}"
    assert not [*tmp_path.glob("*/tpiedge")], "nothing is written"


@pytest.mark.parametrize(
    ("given", "variables", "words"),
    [
        ("worker --conect pi", {}, "No such option '--conect'. Did you mean '--connect'?"),
        ("master demo --parallel 0", {}, "0 is not in the range 1<=x<="),
        ("master", {}, "no MODEL is given: tpiedge service install master MODEL"),
        ("master nobody/nothing", {}, "tpiedge pull nobody/nothing"),
        ("worker --token a --token-file b", {}, "give --token or --token-file, not both"),
        ("master demo --api-key a --api-key-file b", {}, "give --api-key or --api-key-file, not both"),
        ("worker", {"TPIEDGE_WORKER_TOKEN": "t"}, "the service would not have TPIEDGE_WORKER_TOKEN of this shell"),
        ("all", {}, "'all' is not one of 'master', 'worker'"),
        ("worker --memory 2GB", {}, f"after each start of the computer, type 'nohup {OWN} worker --memory 2GB &'"),
    ],
)  # fmt: skip
def test_install_refuses_what_the_service_could_not_use(
    given: str, variables: Mapping[str, str], words: str, tpiedge: Tpiedge, tmp_path: Path
) -> None:
    done = tpiedge("install", *given.split(), **variables)
    assert words in " ".join(words_of(done).split())
    assert not [*tmp_path.glob("*/tpiedge")]


def test_install_under_sudo_says_how_to_type_it(tpiedge: Tpiedge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    done = tpiedge("install", "worker", SUDO_USER="ann")
    assert "without sudo, with --system after 'install'" in words_of(done)


FAKE = """#!/bin/sh
echo "$(basename $0) $*" >> $CALLS
case "$*" in
*NRestarts*) printf "%s\\n" ActiveState=${STATE:-active} SubState=running UnitFileState=enabled NRestarts=2
    echo StatusText=a=b;;
*restart*) [ -z "$FAILS" ] || exit 1;;
*InvocationID*) echo 12ab;;
*identifier*INVOCATION_ID=12ab*) echo 'tpiedge: no such key';;
*show-environment*) echo "XDG_CONFIG_HOME=$KNOWN";;
esac
case $(basename $0) in
sudo) exec "$@";;
systemd-run) [ -z "$FAILS" ] || { echo cannot >&2; exit 1; };;
esac
"""


#: systemd's answers: a start fails; the service ends once it was ready.
ENDS = ({"FAILS": "1"}, {"STATE": "activating"})


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Puts systemd's commands in the path that note how they are called."""
    (tmp_path / "bin").mkdir()
    for name in ("systemctl", "systemd-run", "journalctl", "sudo"):
        (tmp_path / "bin" / name).write_text(FAKE)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("KNOWN", str(tmp_path / "config"))
    monkeypatch.setattr(service, "_BOOTED", tmp_path)
    monkeypatch.setattr(service, "_LINGERING", tmp_path / "linger")
    return lambda: (tmp_path / "calls").read_text().splitlines()


def test_user_service_is_installed_shown_and_removed(
    tpiedge: Tpiedge, calls: Callable[[], list[str]], tmp_path: Path
) -> None:
    done = tpiedge("install", "worker", "--token", "tpi1_secret")
    assert done.exception is None, done.output
    assert "loginctl enable-linger" in done.output
    unit = tmp_path / "config/systemd/user/tpiedge-worker.service"
    secret = tmp_path / "config/tpiedge/service-worker.secret"
    assert "ProtectSystem=strict" in unit.read_text()
    assert stat.S_IMODE(unit.stat().st_mode) == 0o644
    assert "tpi1_secret" not in unit.read_text()
    assert secret.read_text() == "tpi1_secret\n"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert [call.split(" --property")[0] for call in calls()] == [
        "systemctl --user show-environment",
        "systemd-run --user --wait --quiet",
        "systemctl --user daemon-reload",
        "systemctl --user enable tpiedge-worker.service",
        "systemctl --user restart tpiedge-worker.service",
        "systemctl --user show tpiedge-worker.service",
    ]
    assert "tpiedge-worker.service runs: a=b\n" in done.output
    (shown,) = json.loads(tpiedge("status", "--json").output).items()
    assert shown == (
        "worker",
        {
            "of": "this user",
            "state": "active (running)",
            "enabled": "enabled",
            "restarts": "2",
            "says": "a=b",
        },
    )
    assert (
        "worker (this user, enabled): active (running), restarted 2 times\n  a=b\n"
        in tpiedge("status").output
    )
    assert tpiedge("logs", "-n", "3", "--json").exit_code == 0
    assert calls()[-1] == "journalctl --no-pager --quiet --user-unit=tpiedge-worker --lines=3 --output=json"
    assert "tpiedge-worker.service is removed" in tpiedge("uninstall").output
    assert "systemctl --user disable --now tpiedge-worker.service" in calls()
    assert not unit.exists()
    assert not secret.exists()
    assert "no such service is installed: type 'tpiedge service install worker'" in words_of(tpiedge("logs"))
    assert json.loads(tpiedge("status", "--json").output) == {}


@pytest.mark.parametrize("ends", ENDS)
def test_service_that_fails_to_start_says_its_last_line(
    tpiedge: Tpiedge, calls: Callable[[], list[str]], tmp_path: Path, ends: Mapping[str, str]
) -> None:
    done = tpiedge("install", "worker", **ends)
    assert words_of(done) == "tpiedge-worker.service does not start: no such key"
    unlimited = "systemd cannot limit here where the service writes" in done.output
    unit = (tmp_path / "config/systemd/user/tpiedge-worker.service").read_text()
    assert unlimited == ("ProtectSystem" not in unit) == ("FAILS" in ends)


@pytest.mark.parametrize(("known", "home"), [("", "/home/ann"), ("/elsewhere", "config")])
def test_user_service_is_not_written_where_systemd_does_not_look(
    tpiedge: Tpiedge, calls: Callable[[], list[str]], tmp_path: Path, known: str, home: str
) -> None:
    done = tpiedge("install", "worker", KNOWN=known, HOME=home)
    looks = f"{known or f'{home}/.config'}/systemd/user"
    assert f"systemd looks for services in {looks}, not in {tmp_path}/config/systemd/user: unset" in words_of(
        done
    )
    assert not [*tmp_path.glob("*/tpiedge"), *tmp_path.glob("config/*")]
    done = tpiedge("install", "worker", KNOWN="", HOME=str(tmp_path), XDG_CONFIG_HOME=f"{tmp_path}/.config")
    assert done.exception is None


def test_system_service_of_a_user_is_written_with_sudo(
    tpiedge: Tpiedge, calls: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service._Manager, "folder", tmp_path)
    done = tpiedge("install", "worker", "--system")
    assert done.exception is None, done.output
    text = (tmp_path / "tpiedge-worker.service").read_text()
    assert line(text, "User") == "1000"
    assert line(text, "WantedBy") == "multi-user.target"
    wanted = ("daemon-reload", "restart tpiedge-worker.service")
    assert {f"sudo timeout 60 systemctl {words}" for words in wanted} <= {*calls()}


def test_service_with_paths_in_a_temporary_folder_has_no_private_one() -> None:
    unit = ServiceUnit("worker", ("/bin/true", "/var/tmp/m"), (Path("/tmp/state"), Path("/a")))
    assert "PrivateTmp" not in unit.text()
    assert line(unit.text(), "ReadWritePaths") == "/tmp/state /a /tmp /var/tmp"
    assert line(USER.text(), "PrivateTmp") == "yes"


MASTER = ServiceUnit("master", ("/bin/true", 'a "b"\n\\'), (Path("/var/a b"),), "joe", drain_s=70.0)
USER = ServiceUnit("worker", ("/bin/true",), (Path("/var/lib"),))


def test_unit_lets_requests_finish_and_keeps_secrets_private() -> None:
    text = MASTER.text()
    assert line(text, "ExecStart") == '/bin/true "a \\"b\\"\\n\\\\"'
    assert line(text, "ReadWritePaths") == '"/var/a b"'
    assert line(text, "TimeoutStopSec") == "100"
    for expected in (
        "Type=notify",
        "KillMode=mixed",
        "OOMPolicy=continue",
        "UMask=0077",
        "NoNewPrivileges=yes",
    ):
        assert f"{expected}\n" in text
    assert "Capability" not in USER.text(), "a user's manager could not start it"
    assert "ProtectKernel" not in USER.text()


@pytest.mark.parametrize("unit", [MASTER, USER], ids=["system", "user"])
def test_systemd_accepts_the_unit(unit: ServiceUnit, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("software: systemd-analyze is not on this computer")
    path = tmp_path / "tpiedge-test.service"
    path.write_text(unit.text().replace("User=joe", "User=root"))
    scope = "--system" if unit.account else "--user"
    command = [analyze, "verify", scope, "--man=no", "--recursive-errors=no", str(path)]
    variables = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=variables)
    assert (done.returncode, done.stderr) == (0, "")
