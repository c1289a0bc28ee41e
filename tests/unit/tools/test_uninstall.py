"""`make uninstall` removes what was built, and what the user agrees to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from tools import uninstall

ROOT = Path(__file__).parents[3]
CACHE, STATE = ".cache/tpiedge", ".local/state/tpiedge"

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="software: make is not there")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a checkout, a model of 3 MB and a key."""
    checkout = tmp_path / "checkout"
    for folder in ("tools", "tpiedge", ".venv/bin", "build"):
        (checkout / folder).mkdir(parents=True)
    for name in ("Makefile", "tools/uninstall.py"):
        shutil.copy(ROOT / name, checkout / name)
    (checkout / "tpiedge" / "_native.so").touch()
    for folder, size in ((CACHE, 3_000_000), (STATE, 100)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").write_bytes(bytes([1]) * size)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    """Returns the variables of a user who chose no folders, whatever make started this test."""
    chosen = ("MAKE", "MFLAGS", "TPIEDGE_", "XDG_")
    return {name: value for name, value in os.environ.items() if not name.startswith(chosen)} | {
        "HOME": str(home)
    }


def built(home: Path) -> list[str]:
    return sorted(path.relative_to(home / "checkout").as_posix() for path in (home / "checkout").rglob("*"))


@needs_make
def test_uninstall_without_terminal_prints_commands(home: Path) -> None:
    ended = subprocess.run(
        ["make", "uninstall", f"PYTHON={sys.executable}"],
        cwd=home / "checkout", env=environment(home), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=50,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    models, keys, last = ended.stdout.splitlines()
    assert models.startswith("uninstall: models and shards, 3.0 MB, in ")
    assert models.endswith(f"to remove them: rm -r {home / CACHE}")
    assert keys.endswith(f"to remove them: rm -r {home / STATE}")
    assert last.startswith("uninstall: removed .venv and what was built")
    assert built(home) == ["Makefile", "tools", "tools/uninstall.py", "tpiedge"]
    assert (home / CACHE).is_dir()
    assert (home / STATE).is_dir()


@needs_make
def test_uninstall_removes_what_the_user_agrees_to(home: Path) -> None:
    arguments = ["uninstall", f"PYTHON={sys.executable}"]
    with pexpect.spawn("make", arguments, cwd=home / "checkout", env=environment(home), timeout=50) as asking:
        asking.expect_exact(f"remove models and shards, 3.0 MB, in {home / CACHE}? [y/N] ")
        asking.sendline("y")
        asking.expect_exact(f"in {home / STATE}? [y/N] ")
        asking.sendline("")
        asking.expect(pexpect.EOF)
    assert not (home / CACHE).exists()
    assert (home / STATE).is_dir()
    assert built(home) == ["Makefile", "tools", "tools/uninstall.py", "tpiedge"]


def test_unanswered_question_removes_nothing(home: Path) -> None:
    arguments = [str(home / "checkout" / "tools" / "uninstall.py")]
    with pexpect.spawn(sys.executable, arguments, env=environment(home), timeout=50) as asking:
        asking.expect_exact("[y/N] ")
        asking.sendeof()
        asking.expect_exact("uninstall: stopped")
        asking.expect(pexpect.EOF)
    assert asking.exitstatus == 130
    assert (home / CACHE).is_dir()


def test_uninstall_refuses_while_a_service_is_installed(home: Path) -> None:
    unit = home / ".config" / "systemd" / "user" / "tpiedge-worker.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    ended = subprocess.run(
        [sys.executable, "tools/uninstall.py"],
        cwd=home / "checkout", env=environment(home), capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    said = f"uninstall: {unit} runs tpiedge: tpiedge service uninstall, then make uninstall\n"
    assert (ended.returncode, ended.stderr) == (1, said)


def test_folder_that_the_user_named_is_never_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "data").mkdir()
    shutil.move(home / CACHE, home / "data" / "tpiedge")
    chosen = {
        "TPIEDGE_CACHE": str(home / "data" / "tpiedge"),
        "XDG_STATE_HOME": str(home / "none"),
        "XDG_CONFIG_HOME": "/none",
    }
    uninstall.ask_about(chosen, home, lambda _: "y")
    assert f"rm -r {home / 'data' / 'tpiedge'}" in capsys.readouterr().out
    assert (home / "data" / "tpiedge" / "file").is_file()
    assert (home / STATE).is_dir()
