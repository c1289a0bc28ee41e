"""The gate passes by its own findings: neither missing native code nor the caller's options turn it green."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_LIMIT_S = 60.0


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_gate_sets_its_own_requirements_and_pytest_options(tmp_path: Path) -> None:
    program(tmp_path, "make", 'echo "$@ / $PYTEST_ADDOPTS / $TPIEDGE_REQUIRE_NATIVE"')
    for absent in ("docker", "unshare", "chromedriver", "node"):
        program(tmp_path, absent, "exit 1")
    (tmp_path / "project" / ".ci").mkdir(parents=True)
    gate = shutil.copy(ROOT / ".ci" / "run", tmp_path / "project" / ".ci")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTEST_ADDOPTS": "-k nothing"}
    ended = subprocess.run(
        ["bash", gate], env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=True
    )
    words, options, native = ended.stdout.splitlines()[-1].split(" / ")
    required = "native,root" if os.getuid() == 0 else "native"
    assert (words, options, native) == (
        "check", f"--hypothesis-profile=ci --require={required}", "1",
    )  # fmt: skip


@pytest.mark.parametrize(("required", "status"), [("0", 0), ("1", 1)])
def test_native_compile_error_fails_only_if_required(tmp_path: Path, required: str, status: int) -> None:
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for package in ("kernels", "transport", "lab/testbed"):
        source = tmp_path / "tpiedge" / package / "native" / "some.cpp"
        source.parent.mkdir(parents=True)
        source.write_text("this does not compile")
    ended = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=tmp_path, env=os.environ | {"TPIEDGE_REQUIRE_NATIVE": required}, capture_output=True, text=True,
        timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == status, ended.stderr
