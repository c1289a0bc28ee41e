import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from tpiedge.local.distribution import TORCH_INDEX, Installer, shell_lines


def made_of(folder: Path, wheel: bytes) -> Installer:
    (folder / "a.whl").write_bytes(wheel)
    (folder / "a.zip").write_bytes(b"sources")
    return Installer(folder, "a.whl", "a.zip")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ((b"GLIBC_2.2.5", b"GLIBC_2.3"), "a.whl"),
        ((b"GLIBC_2.3", b"GLIBC_2.999"), "a.zip"),
        ((b"GLIBC_2.2.5", b"GLIBCXX_3.4", b"GLIBCXX_3.4.999"), "a.zip"),
        ((b"and GLIBC_2.999 of a text",), "a.whl"),
        ((), "a.whl"),
    ],
)
def test_machine_with_older_libraries_gets_the_sources(
    tmp_path: Path, names: tuple[bytes, ...], chosen: str
) -> None:
    (tmp_path / "g++").write_text("")
    (tmp_path / "g++").chmod(0o755)
    made = made_of(tmp_path, b"\0".join([b"ELF", *names, b""]))
    lines = shell_lines(made, "http://pi:7074", "pi:7070", "t")
    at = next(at for at, line in enumerate(lines) if "python3 -m venv" in line)
    script = "\n".join([f"PATH=$PATH:{tmp_path}", *lines[:at], 'echo "$f"'])
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == made.address(chosen)
    assert done.stderr == ""


@pytest.mark.parametrize("answers", [True, False])
def test_index_that_does_not_answer_is_asked_once(tmp_path: Path, answers: bool) -> None:
    fails = "" if answers else f"Could not fetch URL {TORCH_INDEX}/torch/: connection error - skipping"
    for path, does in (("tpiedge/bin/python", f'echo "{fails}"; echo "$*" >&3'), ("python3", "")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / path).chmod(0o755)
    *lines, _ = shell_lines(made_of(tmp_path, b"wheel"), "http://pi:7074", "pi:7070", "t")
    script = "\n".join(["exec 3>asked", *lines, "true"])
    env = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", script], env=env, cwd=tmp_path, capture_output=True, timeout=60, check=True
    )
    installs = (tmp_path / "asked").read_text().splitlines()[1]
    assert (f"--extra-index-url={TORCH_INDEX} torch==" in installs) == answers
    assert (b"does not answer" in done.stdout) != answers


def test_shell_that_installed_tpiedge_finds_it(tmp_path: Path) -> None:
    own = tmp_path / "tpiedge" / "bin" / "tpiedge"
    own.parent.mkdir(parents=True)
    own.write_text('#!/bin/sh\necho "$@"\n')
    own.chmod(0o755)
    last = shell_lines(made_of(tmp_path, b"wheel"), "http://pi:7074", "pi:7070", "t")[-1]
    script, env = f"{last}\ntpiedge again", {"HOME": str(tmp_path), "PATH": os.defpath}
    done = subprocess.run(["sh", "-c", script], env=env, stdout=subprocess.PIPE, timeout=60, check=True)
    assert done.stdout == b"worker --connect pi:7070 --token t\nagain\n"


def test_files_are_read_once(tmp_path: Path) -> None:
    made = made_of(tmp_path, b"wheel")
    first = shell_lines(made, "http://pi:7074", "pi:7070", "t")
    (tmp_path / "a.whl").unlink()
    again = Installer(tmp_path, "a.whl", "a.zip")
    assert shell_lines(again, "http://pi:7074", "pi:7070", "t") == first
    assert hashlib.sha256(b"wheel").hexdigest() in first[0]
