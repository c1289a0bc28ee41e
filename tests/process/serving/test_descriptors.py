import contextlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.process.command import wait_for
from tests.process.serving.machines import Process
from tests.process.serving.serving import HOST, START_S, Serving

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="system: addresses of 127.0.0.0/8 and prlimit are Linux's"
)

#: Whose connections are not counted together with those of HOST.
_OTHER_HOST = "127.0.0.2"
_SILENT = 300
_SOFT, _HARD = 512, 1024
_FEW_LINES = 40


@pytest.fixture(scope="module")
def cluster(clusters: Callable[..., Serving]) -> Serving:
    cluster = clusters("--min-workers", 1)
    cluster.descriptors = (_SOFT, _HARD)
    cluster.start_master()
    return cluster


@pytest.mark.fault("P14", "silent clients of the API leave descriptors for workers: one joins and serves")
def test_silent_api_clients_do_not_block_workers(cluster: Serving, exact: Callable[[Serving], None]) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(_SILENT):
            stack.enter_context(
                socket.create_connection((HOST, cluster.http_port), START_S, (_OTHER_HOST, 0))
            )
        wait_for(cluster.answers, START_S)
        cluster.start_worker("ann")
        cluster.wait_ready(2)
        exact(cluster)
        assert psutil.Process(cluster.master.pid).num_fds() < _HARD * 3 // 4
    assert len(cluster.master.log.splitlines()) < _FEW_LINES


@pytest.mark.fault("P14", "a limit that is too low ends master and worker at the start, in one line")
def test_too_few_descriptors_are_reported_at_start(tmp_path: Path) -> None:
    process = Process(tmp_path / "log", "worker", "--connect", HOST, descriptors=(64, 64))
    assert process.wait() == 4
    assert process.log == (
        "tpiedge: this process may open 64 files and connections at a time, and needs 1024: raise the limit "
        "(ulimit -n 4096; a service: LimitNOFILE=4096)\n"
    )
