"""A node process that waits to be needed: it reports, becomes a node, and outlives nobody."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster.packs import packs, split
from tests.process.command import gone, wait_for
from tpiedge.errors import InternalError, PeerError
from tpiedge.launch.bootstrap import NodeBootstrap
from tpiedge.launch.readiness import NOT_MEASURED
from tpiedge.launch.slot import NodeSlot
from tpiedge.launch.standby import Standby
from tpiedge.local import cluster as cluster_module
from tpiedge.local.cluster import ClusterSpec, LocalCluster
from tpiedge.wire.control import Token
from tpiedge.wire.requests import GenerationRequest

__all__ = ["packs"]

#: To import torch beside much else takes its time, and so does all that waits for it.
IMPORTING_S = 90.0
OOM_SCORE = Path("/proc/self/oom_score_adj")

# A parent that says which process it has started, and (with "ready") that this one waits for its bootstrap.
PARENT = """
import sys, time
from tpiedge.launch.slot import NodeSlot
from tpiedge.launch.standby import Standby

standby = Standby(1)
standby.start()
if sys.argv[1] == "ready":
    standby.report(time.monotonic() + 90)
print(standby.pid, flush=True)
sys.stdin.read()
"""


def soon() -> float:
    return time.monotonic() + IMPORTING_S


@pytest.fixture
def standby():
    found = Standby(1)
    found.start()
    yield found
    found.stop()


@pytest.mark.skipif(not OOM_SCORE.exists(), reason="software: this system has no OOM scores")
def test_a_node_is_ended_before_the_process_that_started_it(standby):
    before = OOM_SCORE.read_text()
    standby.report(soon())
    assert (Path("/proc") / str(standby.pid) / OOM_SCORE.name).read_text() == "500\n"
    assert OOM_SCORE.read_text() == before


@pytest.mark.parametrize("moment", ["ready", "importing"])
def test_a_waiting_node_does_not_outlive_a_killed_parent(moment):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, moment], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        assert not gone(child)
        parent.kill()
        wait_for(lambda: gone(child), IMPORTING_S)


def test_it_ends_with_its_lifeline_alone(standby):
    """Where the kernel does not tell a child that its parent has died, the closed pipe does."""
    standby.report(soon())
    child = psutil.Process(standby.pid)
    standby.stop(soon())  # closes the pipe, and kills only after the deadline
    wait_for(lambda: gone(child), IMPORTING_S)


def test_it_reports_without_a_measurement(standby):
    report = standby.report(soon())
    assert (report.pid, report.capacity) == (standby.pid, NOT_MEASURED)
    assert report.isa
    assert standby.report(0.0) == report  # again, without waiting
    assert standby.alive


def test_it_measures_when_told():
    standby = Standby(1, measure=True)
    standby.start()
    try:
        capacity = standby.report(soon()).capacity
    finally:
        standby.stop()
    assert capacity.threads == 1
    assert min(capacity.weight_bytes_per_s, capacity.panel_bytes_per_s) > 1e6


def test_a_report_that_is_not_there_yet_is_none(standby):
    assert standby.report(time.monotonic()) is None


def test_one_that_dies_before_its_report_says_why(standby):
    psutil.Process(standby.pid).kill()
    with pytest.raises(PeerError, match="did not report: its process was killed by SIGKILL"):
        standby.report(soon())
    assert not standby.alive


def test_stop_ends_a_wait_for_the_report_in_another_thread(standby):
    outcomes = []

    def wait():
        try:
            outcomes.append(standby.report(soon()))
        except (PeerError, InternalError) as error:
            outcomes.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    standby.stop()
    thread.join(IMPORTING_S)
    assert not thread.is_alive()
    assert isinstance(outcomes[0], PeerError | InternalError)


@pytest.mark.parametrize("ready", [True, False], ids=["ready", "still importing"])
def test_promoted_nodes_answer_like_others(references, packs, monkeypatch, ready):
    found = references("llama-gqa-odd")
    waiting = [Standby(1), Standby(1)]
    for standby in waiting:
        standby.start()
        assert not ready or standby.report(soon()) is not None

    def promote(module, line, environment, *, prefix):
        assert prefix == ()
        bootstrap = NodeBootstrap.from_line(line)
        return waiting[bootstrap.rank].promote(bootstrap)

    monkeypatch.setattr(cluster_module, "Child", promote)
    pids = tuple(standby.pid for standby in waiting)
    with LocalCluster(ClusterSpec(packs(found), split(found, "1,1"), "f32", 1, 100)) as cluster:
        assert cluster.pids == pids
        request = GenerationRequest("r", tuple(found.prompt_ids), 4, ignore_eos=True)
        tokens = [event.token for event in cluster.generate(request) if isinstance(event, Token)]
    assert tokens == list(found.greedy_ids[:4])
    assert not any(standby.alive for standby in waiting)


@pytest.mark.parametrize(("memory_bytes", "warmed"), [(None, True), (1 << 40, True), (200 << 20, False)])
def test_the_next_node_is_started_ahead_only_where_there_is_room_beside_the_one_that_runs(
    memory_bytes, warmed
):
    slot = NodeSlot(1, memory_bytes=memory_bytes)
    try:
        slot.start(
            NodeBootstrap(0, "tcp://127.0.0.1:9", *["k" * 40] * 3, 1, 0.3, 1.5, 60.0), planned_bytes=100 << 20
        )
        first = psutil.Process(slot.pid)
        others = {child.pid for child in psutil.Process().children()} - {first.pid}
        slot.warm_ahead()
        new = {child.pid for child in psutil.Process().children()} - {first.pid} - others
        assert len(new) == warmed
    finally:
        slot.close()


def test_what_nobody_took_is_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    locker = tmp_path / "locker"
    slot = NodeSlot(1, locker=locker)  # of the first start there is no folder yet
    locker.mkdir()
    (locker / "7").write_bytes(b"x")
    slot.close()
    assert not list(locker.iterdir())
    (locker / "8").write_bytes(b"x")
    NodeSlot(1, locker=locker).close()
    assert not list(locker.iterdir())
    (locker / "no file").mkdir()
    NodeSlot(1, locker=locker).close()
    assert f"cannot delete what lies in {locker}: " in caplog.text
