import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.command import COMMAND
from tests.process.serving.machines import Process
from tests.process.serving.serving import HOST, Serving
from tpiedge.errors import ResourceError
from tpiedge.host.process import LEAST, LEAST_TO_COMPUTE
from tpiedge.units import MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system: limits and /dev/shm are Linux's")

_NO_SHARED_MEMORY = "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full"


def limited(nbytes: int, first: str = "true") -> tuple[object, ...]:
    """`tpiedge` after the command `first`, where a process may map so much."""
    return ("sh", "-c", f'{first} && ulimit -v {nbytes // 1024} && exec "$0" "$@"', COMMAND)


@pytest.mark.parametrize(
    ("verb", "mapped", "needed"),
    [
        (("master", "--model", "demo"), LEAST - MIB, "536.9 MB"),
        (("worker", "--connect", HOST), LEAST + MIB, "2.1 GB"),
        (("run", "--model", "demo", "--prompt", "A"), LEAST_TO_COMPUTE - MIB, "2.1 GB"),
    ],
    ids=["master", "worker", "run"],
)
@pytest.mark.fault("P14", "too little address space: master, worker and run end in one line with what to do")
def test_too_little_address_space_is_reported_at_start(
    tmp_path: Path, verb: tuple[str, ...], mapped: int, needed: str
) -> None:
    process = Process(tmp_path / "log", *verb, program=limited(mapped))
    assert process.wait() == ResourceError.exit_code, process.log
    last = process.log.splitlines()[-1]
    assert f"and needs {needed}: lift the limit (ulimit -v unlimited; a service: LimitAS=infinity)" in last
    assert "Traceback" not in process.log
    assert verb[0] == "run" or process.log.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="root: a file system of its own needs it")
@pytest.mark.fault("P14", "/dev/shm is full, and the address space as small as it may be: they serve exactly")
def test_cluster_serves_with_least_address_space_and_full_shm(
    clusters: Callable[..., Serving], exact: Callable[[Serving], None]
) -> None:
    alone = ("unshare", "--mount", "--propagation", "private")
    program = (*alone, *limited(LEAST_TO_COMPUTE, _NO_SHARED_MEMORY))
    cluster = clusters("--min-workers", 1, program=program)
    cluster.start_master()
    cluster.start_worker("ann", program=program)
    cluster.wait_ready(2)
    exact(cluster)
