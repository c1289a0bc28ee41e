"""Who listens on a port is said by what its command line is, or its parent's: a node is the child of its master."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tpiedge.host.ports import Holder, holder, port_state

LISTENS = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""
STARTS = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[-1]])"


@pytest.fixture
def listening(tmp_path: Path):
    """Starts `tpiedge VERB`, or what it starts in its turn, and gives its process and the port that it listens on."""
    script = tmp_path / "tpiedge"
    started = []

    def start(program: str, *words: str):
        script.write_text(program)
        command = [sys.executable, script, *words, LISTENS]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, int(process.stdout.readline())

    yield start
    for process in started:
        process.communicate(timeout=30)


@pytest.mark.parametrize("program", [LISTENS, STARTS], ids=["itself", "its node"])
def test_a_verb_and_its_node(listening, program):
    process, port = listening(program, "master")
    assert port_state(port, "127.0.0.1") == "in use"
    assert holder(port) == Holder(f"another tpiedge master, pid {process.pid}", "master")


def test_another_program():
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = holder(server.getsockname()[1])
    assert found.words.endswith(f", pid {os.getpid()}")
    assert found.verb == ""


def test_a_holder_that_is_not_known():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert holder(port) == Holder("another program")


def test_a_holder_whose_parent_is_not_to_be_seen(monkeypatch: pytest.MonkeyPatch):
    seen = psutil.Process.cmdline

    def own_alone(process: psutil.Process) -> list[str]:
        if process.pid != os.getpid():
            raise psutil.AccessDenied(process.pid)
        return seen(process)

    monkeypatch.setattr(psutil.Process, "cmdline", own_alone)
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = holder(server.getsockname()[1])
    assert found == Holder(f"{psutil.Process().name()}, pid {os.getpid()}")
