"""The token of a master's start: a worker that waits for its file, masters that are killed and restarted."""

import json
import signal

import pytest

from tests.process.command import wait_for
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


@pytest.mark.parametrize("same", [True, False], ids=["same file", "another file"])
def test_the_token_of_a_killed_master_is_void_when_it_is_back(tmp_path, tpiedge, master, same):
    path, folder = tmp_path / "token", tmp_path / "state" / "master"
    killed, _ = master("--token-file", path)
    old = parse_token(path.read_text())
    killed.process.kill()
    killed.finish()
    assert redeem(folder, old.secret) == "ok"
    again = path if same else tmp_path / "other"
    running, _ = master("--token-file", again)
    assert redeem(folder, old.secret) == "unknown"
    assert redeem(folder, parse_token(again.read_text()).secret) == "ok"
    listed = json.loads(tpiedge("token", "ls", "--json", "--state", tmp_path / "state").out)
    assert [token["state"] for token in listed] == ["usable"]
    running.process.terminate()
    assert running.process.wait(START_S) == 0
    wait_for(lambda: not again.exists(), START_S)
    assert TokenStore(folder).list() == ()


def test_three_starts_and_one_token(tmp_path, tpiedge, master):
    """The last one's: the first was killed, the second stopped."""
    folder = tmp_path / "state" / "master"
    secrets = []
    for end in (signal.SIGKILL, signal.SIGTERM, None):
        running, line = master()
        secrets.append(parse_token(line.split()[-1]).secret)
        assert len(TokenStore(folder).list()) == 1
        if end is not None:
            running.process.send_signal(end)
            running.finish()
    listed = json.loads(tpiedge("token", "ls", "--json", "--state", tmp_path / "state").out)
    assert [token["state"] for token in listed] == ["usable"]
    assert [redeem(folder, secret) for secret in secrets] == ["unknown", "unknown", "ok"]
