import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deadlines import Meanwhile
from tests.process.command import Ended, gone, run_command
from tests.process.serving.machines import Worker
from tests.process.serving.serving import Serving

pytestmark = pytest.mark.usefixtures("serving_on")

USER, PEER = 2, 3
WORDS_S = 60.0
CUT_S = 1.0


@pytest.fixture
def undisturbed(cluster: Serving, serving_on):
    """Checks that the first worker noticed nothing."""
    ann = cluster.workers["ann"]
    agent, node, epoch = ann.agent, ann.node, cluster.status()["epoch"]
    yield
    assert agent.is_running()
    assert not gone(node)
    assert cluster.wait_ready(2)["epoch"] == epoch


@pytest.mark.fault("W10", "the second is told; the first one is undisturbed")
def test_second_worker_with_the_same_identity_is_refused(cluster: Serving, undisturbed, tmp_path: Path):
    """A copied disk."""
    copy = tmp_path / "copied"
    shutil.copytree(cluster.workers["ann"].state, copy)
    folders = ("--state", copy, "--cache", tmp_path / "cache")
    ended = run_command("worker", "--connect", cluster.address, *folders, "--threads", 1)
    assert (ended.status, ended.out) == (PEER, ""), ended.err
    (line,) = ended.err.splitlines()
    assert "stop that process, or give this one a --state of its own" in line


@pytest.mark.fault("W4", "cut off at once and told so; it does not come back")
def test_a_revoked_worker_is_cut_and_stays_out(cluster: Serving, here: Callable[..., Ended]):
    eve = cluster.start_worker("eve")
    cluster.wait_until(
        lambda status: status["ready"] and any(node["host"] == "eve" for node in status["nodes"])
    )
    ended = here("nodes", "revoke", "eve", TPIEDGE_STATE=str(cluster.state))
    meanwhile = Meanwhile()
    assert ended.status == 0, ended.err
    assert eve.process.wait(WORDS_S) in (USER, PEER)
    assert meanwhile.spent_s < CUT_S * meanwhile.deadline_factor()
    assert re.search("revoked.*delete key.json", last_line(eve))
    cluster.wait_ready(2)
    for token in (False, True):
        cluster.start_worker("eve", token=token)
        assert eve.process.wait() in (USER, PEER)
        assert re.search("revoked.*delete key.json", last_line(eve))
    assert not any(node["host"] == "eve" for node in cluster.status()["nodes"])
    everybody = here("nodes", "--all", TPIEDGE_STATE=str(cluster.state)).out
    assert [line.split()[:3] for line in everybody.splitlines() if "eve" in line] == [["eve", "-", "revoked"]]
    del cluster.workers["eve"]


def last_line(worker: Worker) -> str:
    return worker.log.strip().rsplit("\n", 1)[-1]
