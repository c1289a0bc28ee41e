"""A machine without tpiedge gets it from the master. The libraries that pip would fetch from elsewhere are there."""

import contextlib
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.process.conftest import Exact
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import Namespaces
from tpiedge import __version__

_LIMIT_S = 120.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose environment `tpiedge` has this one's libraries, but no tpiedge."""
    folder = tmp_path / "home"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "tpiedge"], check=True)
    there = folder / "tpiedge" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (there / "here.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder


def pasted(home: Path, lines: list[str], machine: str = "") -> subprocess.CompletedProcess[str]:
    """Runs lines as a shell of a new machine does; `machine`: what it says that it is."""
    tools = home / "bin"
    tools.mkdir()
    (tools / "python3").symlink_to(sys.executable)
    if machine:
        (tools / "uname").write_text(f"#!/bin/sh\necho Linux {machine}\n")
        (tools / "uname").chmod(0o755)
    known = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(home),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
    }
    # The build's requirements are here, too. No compiler works, so that compiling takes no time.
    known |= {"PIP_NO_BUILD_ISOLATION": "0", "CC": "false", "CXX": "false"}
    return subprocess.run(
        ["sh", "-c", "\n".join(lines)],
        env=known,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )


def test_lines_of_the_master_install_a_worker_that_joins(
    namespaces: Namespaces, tmp_path: Path, home: Path, exact: Exact
) -> None:
    with contextlib.closing(NetworkCluster(tmp_path, namespaces, "--min-workers", 1)) as cluster:
        cluster.start_master()
        *install, start = cluster.administer("POST", "tokens", json={}).raise_for_status().json()["lines"]
        with namespaces.inside("worker1"):
            ended = pasted(home, [*install[:-1], install[-1].removesuffix(" &&")])
        assert ended.returncode == 0, ended
        path, joins, program, verb, *options = shlex.split(start.replace("~", str(home)))
        assert (path, joins) == (f"PATH=$PATH:{home}/tpiedge/bin", "&&")
        assert verb == "worker"
        cluster.join("kitchen", *options, machine="worker1", token=False, program=(program,))
        cluster.wait_ready(2)
        exact(cluster)


def test_other_kinds_of_machines_compile_the_sources(
    namespaces: Namespaces, tmp_path: Path, home: Path
) -> None:
    with contextlib.closing(NetworkCluster(tmp_path, namespaces)) as cluster:
        cluster.start_master()
        *install, _ = cluster.administer("POST", "tokens", json={}).raise_for_status().json()["lines"]
        install[-1] = install[-1].removesuffix(" &&")
        with namespaces.inside("worker1"):
            ended = pasted(home, install, machine="aarch64")
    assert ended.returncode == 0, ended
    told = subprocess.run(
        [home / "tpiedge/bin/tpiedge", "--version"], capture_output=True, text=True, check=True
    )
    assert told.stdout.startswith(f"tpiedge, version {__version__}+")
