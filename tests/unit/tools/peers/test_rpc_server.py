"""A server is there during the block and gone after it; one that cannot be reached is told of in its own words."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.peers import rpc_server as module
from tools.peers.rpc_server import rpc_server
from tpiedge.errors import PeerError
from tpiedge.launch.child import Place

_LISTENS = """
import os, pathlib, socket, sys
options = dict(zip(sys.argv[1:-1:2], sys.argv[2::2]))
pathlib.Path(os.environ["LLAMA_CACHE"], "threads").write_text(options["-t"] + sys.argv[-1])
server = socket.create_server((options["-H"], int(options["-p"])))
while True:
    server.accept()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write a program in Python; nobody else is at its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setattr(module, "_PORT", free.getsockname()[1])

    def write(text: str) -> Path:
        path = tmp_path / "server"
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
        return path

    return write


def test_it_is_there_during_the_block(program, tmp_path):
    with rpc_server(program(_LISTENS), Place(), 3, tmp_path) as address:
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), 5.0).close()
    assert (tmp_path / "threads").read_text() == "3-c"
    with pytest.raises(OSError):
        socket.create_connection((host, int(port)), 5.0)


def test_another_s_is_not_taken_for_it(program, tmp_path):
    with (
        socket.create_server(("127.0.0.1", module._PORT)),
        pytest.raises(PeerError, match=r"something listens at .* already"),
        rpc_server(program(_LISTENS), Place(), 3, tmp_path),
    ):
        pass
    assert not (tmp_path / "threads").exists()


def test_one_that_ends_at_once_says_why(program, tmp_path):
    ends = program("import sys; sys.exit('No devices\\nfound')")
    with (
        pytest.raises(PeerError, match="server cannot be reached: No devices found"),
        rpc_server(ends, Place(), 1, tmp_path),
    ):
        pass


def test_one_that_does_not_listen_is_not_waited_for_without_end(program, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_START_S", 0.5)
    sleeps = program("import time; time.sleep(60)")
    with (
        pytest.raises(PeerError, match="server cannot be reached: it said nothing"),
        rpc_server(sleeps, Place(), 1, tmp_path),
    ):
        pass
