"""What is remembered of a testbed, when that is worth nothing any more, and who may change it."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed import state as module
from tpiedge.lab.testbed.description import Link
from tpiedge.lab.testbed.reading import load_scenario
from tpiedge.lab.testbed.state import Owner, TestbedState, folder_of, locked, names, read_state

GONE = replace(Owner.own(), pid=2**30)
LATER = replace(Owner.own(), started=1.0)
BEFORE = replace(Owner.own(), boot="before")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "tpiedge" / "testbeds"
    monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return root


def made(**changes: object) -> TestbedState:
    return replace(TestbedState("x", load_scenario("pair").text, "switch", maker=Owner.own()), **changes)  # type: ignore[arg-type]


def test_there_and_back(root: Path) -> None:
    state = made(owner=Owner.own(), ready=True, links={"device1": (Link(0.5), Link(loss=0.1))})
    state.write()
    assert read_state("x") == state
    assert names() == ["x"]
    assert (root / "x").stat().st_mode & 0o777 == 0o700
    assert state.topology.link("device1", "up") == Link(0.5)
    assert state.topology.link("device1", "down") == Link(loss=0.1)
    assert state.topology.link("device2", "up") == Link(0.0005, bytes_per_s=37_500_000.0)


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", "{}", '{"maker": 1}', '{"maker": {"pid": 1}}', "null"]
)
def test_a_state_that_says_nothing(content: str | None) -> None:
    made().write()
    path = folder_of("x") / "state.json"
    path.unlink() if content is None else path.write_text(content)
    assert read_state("x") is None
    assert names() == ["x"]


def test_a_field_too_many() -> None:
    made().write()
    path = folder_of("x") / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"zebra": 1}))
    assert read_state("x") is None


@pytest.mark.parametrize(
    ("changes", "abandoned"),
    [
        pytest.param({}, False, id="being made"),
        pytest.param({"maker": GONE}, True, id="maker gone"),
        pytest.param({"maker": GONE, "ready": True}, False, id="up"),
        pytest.param({"maker": GONE, "ready": True, "owner": GONE}, True, id="owner gone"),
        pytest.param(
            {"maker": GONE, "ready": True, "owner": LATER}, True, id="another has the owner's number"
        ),
        pytest.param({"maker": GONE, "ready": True, "owner": BEFORE}, True, id="owner before a restart"),
        pytest.param({"ready": True, "boot": "before"}, True, id="up before a restart"),
        pytest.param({"boot": "before"}, True, id="made before a restart"),
    ],
)
def test_when_only_its_removal_is_left(changes: dict[str, object], abandoned: bool) -> None:
    assert made(**changes).abandoned is abandoned


def test_one_with_a_living_owner_is_its_owners() -> None:
    found = made(maker=GONE, ready=True, owner=Owner.own())
    assert not found.abandoned
    assert not found.orphaned


@pytest.mark.parametrize("gone", [GONE, LATER, BEFORE], ids=["gone", "another has its number", "restart"])
@pytest.mark.parametrize("ready", [False, True])
def test_one_whose_owner_is_gone_is_nobodys(gone: Owner, ready: bool) -> None:
    assert made(owner=gone, ready=ready).orphaned
    assert not made(maker=gone, ready=ready).orphaned  # made to stay, or left to its name


def test_setting_the_clock_makes_no_owner_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time at which the computer started seems to move with it."""
    before = Owner.own()
    later = psutil.boot_time() + 3600
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: later)
    monkeypatch.setattr("psutil._pslinux.BOOT_TIME", later, raising=False)
    assert before.alive
    assert Owner.own() == before


def test_a_process_that_has_ended_is_no_owner() -> None:
    """Also while its parent has not asked how."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        owner = Owner(process.pid, float(stat_of(process.pid)[21]), Owner.own().boot)
        assert owner.alive
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert stat_of(process.pid)[2] == "Z"
        assert not owner.alive
    assert not owner.alive


def stat_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().split()


def test_elsewhere_than_on_linux_one_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="needs Linux"), locked("x"):
        pytest.fail("no namespaces there")


def test_a_lock_leaves_nothing_behind(root: Path) -> None:
    with locked("x"):
        assert [path.name for path in root.iterdir()] == ["x.lock"]
    assert not root.parent.exists()


def test_one_at_a_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOCK_S", 0.1)
    with (
        locked("x"),
        pytest.raises(ResourceError, match="another command works on the testbed x"),
        locked("x"),
    ):
        pytest.fail("two at a time")
    with locked("x"), locked("y"):
        pass
    assert not root.parent.exists()


def test_many_threads_one_after_the_other() -> None:
    """Also while each removes the lock's file, and its folders, as it leaves."""
    busy = threading.Lock()
    entered: list[int] = []

    def enter(number: int) -> None:
        for _ in range(20):
            with locked("x"):
                assert busy.acquire(blocking=False)
                entered.append(number)
                busy.release()

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entered) == 80


def test_the_lock_of_a_killed_command_is_free(root: Path) -> None:
    hold = "from tpiedge.lab.testbed import state; import os, pathlib, sys; state.ROOT = pathlib.Path(sys.argv[1])\n"
    hold += "state._lock(state.ROOT / 'x.lock', 1e9); print(flush=True); os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", hold, str(root)], capture_output=True, check=False)
    assert killed.returncode == -9
    with locked("x"):
        pass


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="needs root"), locked("x"):
        pytest.fail("no lock for everybody")
