import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.peers.confined import Ended, run_confined
from tpiedge.errors import UserError
from tpiedge.lab.memory_group import memory_group

ROOT = Path(__file__).parents[4]
LIMIT = 64 << 20
DEADLINE_S = 30.0


@pytest.fixture
def groups() -> Iterator[None]:
    """Skips where groups cannot be made; none is left behind."""
    try:
        with memory_group(LIMIT) as group:
            parent = group.members_file.parents[1]
    except UserError as error:
        pytest.skip(f"groups: {error}")
    yield
    assert not list(parent.glob(f"tpiedge-{os.getpid()}-*"))


def run(code: str, deadline_s: float = DEADLINE_S) -> Ended:
    return run_confined([sys.executable, "-c", code], LIMIT, deadline_s, os.environ)


def test_confined_run_reports_output_and_peak_memory(groups):
    ended = run("held = bytearray(b'x' * 30_000_000); print('fine')")
    assert (ended.status, ended.out, ended.failure) == (0, "fine\n", None)
    assert 30_000_000 < ended.use.peak_bytes <= LIMIT


def test_oom_kill_is_reported_as_out_of_memory(groups):
    ended = run("held = bytearray(b'x' * 200_000_000)")
    assert ended.use.oom_kills == 1
    assert ended.failure == "out of memory: the kernel killed 1 of its processes"
