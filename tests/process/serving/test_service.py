"""Services: what they tell systemd, and a systemd of the tests' own that runs them."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import tpiedge
from tests.process.command import COMMAND, Ended, wait_for
from tests.process.serving.serving import START_S, Serving

_WATCHDOG_S = 0.4


class Heard:
    """The socket of a service manager."""

    def __init__(self, path: Path) -> None:
        self.program = ("env", f"NOTIFY_SOCKET={path}", f"WATCHDOG_USEC={int(_WATCHDOG_S * 1e6)}", COMMAND)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(START_S)

    def until(self, wanted: str) -> None:
        """Reads messages up to one that begins so. Fails after START_S without any."""
        while not self._socket.recv(4096).decode().startswith(wanted):
            pass

    def close(self) -> None:
        self._socket.close()


def test_services_report_start_life_and_end(clusters: Callable[..., Serving], tmp_path: Path) -> None:
    with (
        contextlib.closing(Heard(tmp_path / "m")) as master,
        contextlib.closing(Heard(tmp_path / "w")) as worker,
    ):
        cluster = clusters("--min-workers", 1, program=master.program)
        cluster.start_master(wait=False)
        for wanted in ("READY=1", "STATUS=not ready: 1 more worker needed", "WATCHDOG=1"):
            master.until(wanted)
        process = cluster.start_worker("ann", program=worker.program).process
        for wanted in ("READY=1\nWATCHDOG_USEC=0", "STATUS=joined", "WATCHDOG_USEC=400000\nWATCHDOG=1"):
            worker.until(wanted)
        master.until("STATUS=ready: 2 nodes (master, ann)")
        for heard, one in ((worker, process), (master, cluster.master)):
            one.popen.send_signal(signal.SIGTERM)
            heard.until("STOPPING=1")
            assert one.wait() == 0


_TARGETS = ("sysinit", "basic", "shutdown", "multi-user", "network-online")
_STUB = "[Unit]\nDefaultDependencies=no\n"
_SPACES = ("--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net")
_SYSTEMD = shutil.which("systemd", path="/lib/systemd:/usr/lib/systemd")
#: Replaces the units of this computer, which would be started as well.
_BOOT = """
set -e
mount --make-rprivate /
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs none /run
mkdir -p /run/systemd/system /run/none /run/code
mount --bind "$CODE" /run/code
mount --bind "$UNITS" /usr/lib/systemd/system
mount --bind /run/none /usr/lib/systemd/system-generators
mount -t tmpfs none /etc/systemd/system
mount -t tmpfs none /var/log
ip link set lo up
exec env container=tests "$SYSTEMD" --unit=basic.target --log-target=null --show-status=no
"""


class Booted:
    """A systemd that is process 1 of namespaces of its own, with a journal."""

    def __init__(self, folder: Path, group: Path) -> None:
        units, usual = folder / "units", Path("/usr/lib/systemd/system")
        units.mkdir()
        for journal in usual.glob("systemd-journald*"):
            shutil.copy(journal, units, follow_symlinks=False)
        for name in _TARGETS:
            (units / f"{name}.target").write_text(_STUB)
        (units / "basic.target").write_text(f"{_STUB}Wants=systemd-journald.service\n")
        code = Path(tpiedge.__file__).parents[1]
        variables = {"CODE": str(code), "UNITS": str(units), "SYSTEMD": str(_SYSTEMD)}
        enter = f"unshare --fork {' '.join(_SPACES)} --mount-proc bash -c '{_BOOT}'"
        self._unshare = subprocess.Popen(
            ["bash", "-c", f"echo $$ > {group}/cgroup.procs; exec {enter}"],
            env=os.environ | variables,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def wait(self) -> None:
        def up() -> bool:
            if self._unshare.poll() is not None:
                pytest.skip(f"system: systemd cannot be started here: {self._words()}")
            return bool(self._first()) and self("systemctl", "is-active", "basic.target").status == 0

        wait_for(up, START_S)
        self("systemctl", "set-environment", "PYTHONPATH=/run/code", "PYTHONDONTWRITEBYTECODE=1")

    def _words(self) -> str:
        assert self._unshare.stderr is not None
        return " ".join(self._unshare.stderr.read().decode().split())

    def _first(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._unshare.pid).children()
        return []

    def __call__(self, *words: object) -> Ended:
        (first,) = self._first()
        enter = ["nsenter", f"--target={first.pid}", *_SPACES, *map(str, words)]
        own = {"PATH": os.environ["PATH"], "HOME": "/run/home", "PYTHONPATH": "/run/code"}
        done = subprocess.run(enter, capture_output=True, text=True, timeout=100, check=False, env=own)
        return Ended(done.returncode, done.stdout, done.stderr)

    def tpiedge(self, *words: object) -> str:
        ended = self(COMMAND, *words)
        assert ended.status == 0, ended
        return ended.out

    def status(self, verb: str) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.tpiedge("service", "status", "--json"))[verb]
        return found

    def close(self) -> None:
        for first in self._first():
            first.kill()
        self._unshare.wait(START_S)
        if self._unshare.stderr is not None:
            self._unshare.stderr.close()


@pytest.fixture
def booted(tmp_path: Path) -> Iterator[Booted]:
    if os.geteuid():
        pytest.skip("root: needed to start a systemd")
    if _SYSTEMD is None:
        pytest.skip("software: systemd is not on this computer")
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    group = next(
        (Path(words[1]) / f"tpiedge-{os.getpid()}" for words in mounts if words[2] == "cgroup2"), None
    )
    try:
        assert group is not None, "no cgroup2 is mounted"
        group.mkdir()
    except (AssertionError, OSError) as error:
        pytest.skip(f"groups: {error}")
    try:
        with contextlib.closing(Booted(tmp_path, group)) as systemd:
            systemd.wait()
            yield systemd
    finally:
        for folder, _, _ in os.walk(group, topdown=False):
            wait_for(lambda folder=folder: not Path(folder, "cgroup.procs").read_text(), START_S)
            os.rmdir(folder)


def test_systemd_runs_both_services_and_restarts_a_frozen_one(booted: Booted) -> None:
    small = ("--threads", 1, "--memory", "600MB")
    booted.tpiedge("service", "install", "master", "demo", "--min-workers", 1, *small)
    token = booted.tpiedge("token", "create", "--host", "127.0.0.1").strip()
    impatient = "mkdir $0 && echo '[Service]\nWatchdogSec=5' > $0/test.conf"
    booted("sh", "-c", impatient, "/etc/systemd/system/tpiedge-worker.service.d")
    booted.tpiedge("service", "install", "worker", "--token", token, *small)
    wait_for(lambda: booted.status("master")["says"].startswith("ready: 2 nodes"), START_S)
    assert token not in booted("journalctl", "--output=cat").out
    assert token not in booted("systemctl", "cat", "tpiedge-worker").out
    booted("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "tpiedge-worker")
    wait_for(lambda: booted.status("worker")["restarts"] == "1", START_S)
    wait_for(lambda: booted.status("worker")["state"] == "active (running)", START_S)
    assert "ready: 2 nodes" in booted.tpiedge("service", "logs", "master")
    for verb in ("worker", "master"):
        booted.tpiedge("service", "uninstall", verb)
    assert "tpiedge" not in booted("systemctl", "list-units", "--all", "--no-legend").out
