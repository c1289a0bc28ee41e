"""The token of a master's start: a worker that waits for its file, masters that are killed and restarted."""

import signal

import pytest

from tests.process.serving.machines import measured
from tests.process.serving.serving import free_ports
from tests.redeeming import redeem
from tpiedge.joining.token_store import TokenStore
from tpiedge.joining.tokens import parse_token

START_S = 90.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_worker_that_is_stopped_while_it_waits_has_done_its_work(start, tmp_path, number):
    path = tmp_path / "token"
    worker = start("worker", "--token-file", path, "--wait", 60, "--state", tmp_path / "state")
    assert worker.process.stderr.readline() == f"waiting for a token in {path}\n".encode()
    worker.process.send_signal(number)
    ended = worker.finish()
    assert (ended.status, ended.out, ended.err) == (0, "", "")


@pytest.fixture
def master(start, tmp_path):
    """Start it; returns when its token is in the file, or else printed, and the line that says so."""
    measured(tmp_path / "state" / "master")

    def begin(*flags):
        port = free_ports()
        began = start(
            "master", "--model", "demo", "--threads", 1, "--listen", f"127.0.0.1:{port}",
            "--http", f"127.0.0.1:{port + 4}", *flags, "--state", tmp_path / "state",
        )  # fmt: skip
        said = []
        for line in began.process.stderr:
            said.append(line.decode())
            if line.startswith(b"serving "):
                return began, next(line for line in said if "tpiedge worker" in line)
        raise AssertionError(began.finish().err)

    return begin


def test_the_token_of_a_killed_master_is_void_when_it_is_back(tmp_path, tpiedge, master):
    path, folder = tmp_path / "token", tmp_path / "state" / "master"
    killed, _ = master("--token-file", path)
    old = parse_token(path.read_text())
    killed.process.kill()
    killed.finish()
    assert redeem(folder, old.secret) == "ok"
    running, line = master()
    assert [redeem(folder, secret) for secret in (old.secret, parse_token(line.split()[-1]).secret)] == [
        "unknown",
        "ok",
    ]
    running.process.terminate()
    assert running.process.wait(START_S) == 0
    assert TokenStore(folder).list() == ()
