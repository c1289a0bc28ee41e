"""Who may come in, and what the others are told: one line, an exit status, and a cluster that serves on."""

import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import Meanwhile
from tests.process.command import Ended, gone, run_command, wait_for
from tests.process.serving.machines import Worker, measured
from tests.process.serving.serving import HOST, START_S, Serving, free_ports
from tpiedge.joining.identity import load_or_create_keys
from tpiedge.joining.members import KnownWorker, MemberJournal
from tpiedge.joining.token_store import TokenStore
from tpiedge.joining.tokens import JoinToken
from tpiedge.transport.keys import CurveKeys

pytestmark = pytest.mark.usefixtures("serving_on")

USER, PEER, INTERRUPTED = 2, 3, 130
WORDS_S = 60.0
CUT_S = 1.0


@pytest.fixture
def undisturbed(cluster: Serving, serving_on):
    """Whoever is turned away: the first worker does not notice."""
    ann = cluster.workers["ann"]
    agent, node, epoch = ann.agent, ann.node, cluster.status()["epoch"]
    yield
    assert agent.is_running()
    assert not gone(node)
    assert cluster.wait_ready(2)["epoch"] == epoch


@pytest.fixture
def join(tmp_path: Path, undisturbed):
    """Run `tpiedge worker ARGUMENTS...` on a new machine, to its end."""
    measured(tmp_path / "state" / "worker")

    def run(*arguments: object, state: Path = tmp_path / "state") -> Ended:
        folders = ("--state", state, "--cache", tmp_path / "cache")
        return run_command("worker", *arguments, *folders, "--threads", 1)

    return run


def refusal(ended: Ended, status: int) -> str:
    """The one line that it ends with."""
    assert ended.status == status, ended.err
    assert ended.out == ""
    assert ended.err.startswith("tpiedge: ")
    assert ended.err.count("\n") == 1, ended.err
    return ended.err


def test_an_expired_token(cluster: Serving, join):
    made = run_command(
        "token", "create", "--expires", "1s", "--host", cluster.address, TPIEDGE_STATE=str(cluster.state)
    )
    expires = time.time() + 1.0
    wait_for(lambda: time.time() > expires, WORDS_S)
    assert "this token has expired" in refusal(join("--token", made.out.strip()), USER)


@pytest.mark.fault("W4", "who has a token of another master is told so in one line")
def test_a_token_of_another_master(cluster: Serving, join, tmp_path):
    other = tmp_path / "other"
    _, secret = TokenStore(other).create()
    token = JoinToken(load_or_create_keys(other).public, secret, cluster.address)
    assert "with another key" in refusal(join("--token", token.text), USER)


def test_a_damaged_token(cluster: Serving, join):
    token = cluster.token()
    assert "copy the whole word again" in refusal(join("--token", token.replace("_", "_a", 2)), USER)


def test_a_second_master_on_the_same_port(cluster: Serving, undisturbed, tmp_path):
    measured(tmp_path / "master")
    ended = run_command(
        "master", "--model", "demo", "--listen", cluster.address, "--http", f"{HOST}:{free_ports()}",
        "--threads", 1, "--state", tmp_path,
    )  # fmt: skip
    words = refusal(ended, USER)
    assert f"cannot listen on {cluster.address} for workers: another tpiedge master, pid " in words
    assert words.endswith(" has this port; stop it, or give another port with --listen\n")


def test_a_second_master_of_the_same_folder(cluster: Serving, undisturbed):
    """It would have the first one's members and tokens, and leave it without its administration at the end."""
    ended = run_command(
        "master", "--model", "demo", "--listen", f"{HOST}:{free_ports()}", "--http", f"{HOST}:{free_ports()}",
        "--threads", 1, "--state", cluster.state,
    )  # fmt: skip
    words = refusal(ended, USER)
    assert "a master runs already (process " in words
    assert all(flag in words for flag in ("--state", "--listen", "--http"))
    assert run_command("nodes", "--state", cluster.state).status == 0


@pytest.mark.fault("W10", "the second is told; the first one is undisturbed")
def test_a_second_worker_with_the_same_identity(cluster: Serving, join, tmp_path):
    """A copied disk."""
    copy = tmp_path / "copied"
    shutil.copytree(cluster.workers["ann"].state, copy)
    words = refusal(join("--connect", cluster.address, state=copy), PEER)
    assert "stop that process, or give this one a --state of its own" in words


def test_a_worker_that_has_not_come_since_the_start_is_shown_on_request(clusters: Callable[..., Serving]):
    cluster = clusters()
    away = KnownWorker(CurveKeys.generate().public, "cellar", 0.0, "token")
    MemberJournal(cluster.state / "master").admit(away)
    cluster.start_master()
    variables = {"TPIEDGE_STATE": str(cluster.state)}
    assert "cellar" not in run_command("nodes", **variables).out
    (line,) = [
        line for line in run_command("nodes", "--all", **variables).out.splitlines() if away.name in line
    ]
    assert line.split()[:4] == [away.name, "(cellar)", "-", "away"]


@pytest.mark.fault("W4", "cut off at once and told so; it does not come back")
def test_a_revoked_worker_is_cut_and_stays_out(cluster: Serving):
    eve = cluster.start_worker("eve")
    cluster.wait_until(
        lambda status: status["ready"] and any(node["host"] == "eve" for node in status["nodes"])
    )
    ended = run_command("nodes", "revoke", "eve", TPIEDGE_STATE=str(cluster.state))
    meanwhile = Meanwhile()
    assert ended.status == 0, ended.err
    assert eve.process.wait(WORDS_S) in (USER, PEER)
    assert meanwhile.spent_s < CUT_S * meanwhile.patience()
    assert re.search("revoked.*delete key.json", last_line(eve))
    cluster.wait_ready(2)
    for token in (False, True):
        cluster.start_worker("eve", token=token)
        assert eve.process.wait() in (USER, PEER)
        assert re.search("revoked.*delete key.json", last_line(eve))
    assert not any(node["host"] == "eve" for node in cluster.status()["nodes"])
    everybody = run_command("nodes", "--all", TPIEDGE_STATE=str(cluster.state)).out
    assert [line.split()[1:4] for line in everybody.splitlines() if "eve" in line] == [
        ["(eve)", "-", "revoked"]
    ]


def test_ctrl_c_of_a_worker_that_nobody_let_in_says_what_helps(cluster: Serving, undisturbed):
    """No token, though it has joined nothing, is what a member needs."""
    guest = cluster.start_worker("guest", token=False)
    wait_for(lambda: "the code of this worker is" in guest.log, START_S)
    assert guest.process.end(signal.SIGINT) == INTERRUPTED
    said = "this machine had not joined: the same command tries again, with another code where it showed one"
    assert last_line(guest) == f"tpiedge: stopped; {said}"


def last_line(worker: Worker) -> str:
    return worker.log.strip().rsplit("\n", 1)[-1]
