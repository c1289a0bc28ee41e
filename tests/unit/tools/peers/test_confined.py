"""Children in control groups of their own: limited, timed, counted, and gone afterwards."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.command import wait_for
from tools.peers.confined import Ended, run_confined
from tpiedge.errors import UserError
from tpiedge.host.memory_group import memory_group

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


def test_output_and_peak(groups):
    ended = run("held = bytearray(b'x' * 30_000_000); print('fine')")
    assert (ended.status, ended.out, ended.failure) == (0, "fine\n", None)
    assert 30_000_000 < ended.use.peak_bytes <= LIMIT


def test_page_cache_counts(groups, tmp_path):
    (tmp_path / "file").write_bytes(bytes(20_000_000))
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    ended = run(f"f = open({str(tmp_path / 'file')!r}, 'rb')\nwhile f.read(1 << 16): pass")
    assert ended.use.peak_bytes > 20_000_000


def test_too_much_memory_is_called_that(groups):
    ended = run("held = bytearray(b'x' * 200_000_000)")
    assert ended.use.oom_kills == 1
    assert ended.failure == "out of memory: the kernel killed 1 of its processes"


def test_the_last_words_of_a_failure(groups):
    assert run("import sys; sys.exit('no weights')").failure == "exit status 1: no weights"


def test_no_answer_and_nobody_left(groups):
    # The grandchild holds the pipes and ignores its parent's end.
    code = "import subprocess, sys, time\nsubprocess.Popen(['sleep', '1000'])\ntime.sleep(1000)"
    ended = run(code, deadline_s=0.5)
    assert ended.status is None
    assert ended.failure == "no answer in 0 s"


def test_an_interrupt_ends_the_group(groups, tmp_path):
    marker = tmp_path / "started"
    code = (
        "import os, sys\n"
        "from tools.peers.confined import run_confined\n"
        f"run_confined(['/bin/sh', '-c', 'echo $$ > {marker}.new; mv {marker}.new {marker}; sleep 1000'],"
        f" {LIMIT}, 60.0, os.environ)\n"
    )
    tool = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(marker.exists, DEADLINE_S)
        child = int(marker.read_text())
        tool.send_signal(2)
        _, err = tool.communicate(timeout=DEADLINE_S)
    finally:
        tool.kill()
    assert "KeyboardInterrupt" in err
    assert not Path(f"/proc/{child}").exists()
