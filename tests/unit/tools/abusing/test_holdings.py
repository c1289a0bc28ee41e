"""What a process has come to hold is seen, and what it always held is no leak."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from tools.abusing.holdings import (
    FILES,
    RSS_BYTES,
    THREADS,
    ProcessHoldings,
    growth,
    look,
    memory_growth,
    settle,
)
from tpiedge.units import MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system: reads /proc")

HELD = ProcessHoldings(1, 60, 20, 100 * MIB, 80 * MIB)
_HOLDER = """
import sys
held = []
for line in sys.stdin:
    held += [open("/dev/null") for _ in range(int(line))]
    print("done", flush=True)
"""


@pytest.fixture
def holder() -> Iterator["subprocess.Popen[str]"]:
    """A process that opens as many files as it is told."""
    command = [sys.executable, "-c", _HOLDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_leaked_descriptor_is_seen(holder: "subprocess.Popen[str]") -> None:
    assert holder.stdin is not None
    assert holder.stdout is not None

    def roles() -> dict[str, list[int]]:
        return {"master": [holder.pid]}

    print(0, file=holder.stdin, flush=True)
    assert holder.stdout.readline() == "done\n"
    before = look(roles)
    more = partial(growth, before)
    assert settle(more, roles, 0.0)[1] == []
    print(FILES + 1, file=holder.stdin, flush=True)
    assert holder.stdout.readline() == "done\n"
    had = before["master"].files
    assert settle(more, roles, 0.0)[1] == [f"master: {had + FILES + 1} files instead of {had}"]


def test_a_process_that_came_or_went_is_seen() -> None:
    before = {"ann's children": HELD}
    assert growth(before, {"ann's children": replace(HELD, processes=2)}) == [
        "ann's children: 2 instead of 1 processes"
    ]
    assert growth(before, {}) == ["ann's children: 0 instead of 1 processes"]


def test_a_process_that_has_ended_holds_nothing() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert look(lambda: {"master": [process.pid]})["master"] == ProcessHoldings(0, 0, 0, 0, 0)
    assert look(lambda: {"master": [os.getpid()]})["master"].processes == 1


def test_threads_and_memory_may_grow_a_little() -> None:
    before = {"master": HELD}
    little = replace(HELD, threads=20 + THREADS, rss=HELD.rss + RSS_BYTES)
    much = replace(HELD, threads=21 + THREADS, rss=little.rss + MIB)
    assert growth(before, {"master": little}) == []
    assert memory_growth(before, {"master": little}) == []
    assert growth(before, {"master": much}) == ["master: 25 threads instead of 20"]
    assert memory_growth(before, {"master": much}) == ["master: 117 MiB of memory instead of 100"]
