"""Freed memory goes back to the system. Tests run in processes of their own: malloc remembers all that was before."""

import subprocess
import sys

import pytest

from tpiedge.host.process import FreedMemory
from tpiedge.units import MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system: the C library is Linux's")


def printed_by(program: str, *arguments: str) -> list[int]:
    ended = subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True)
    return list(map(int, ended.stdout.split()))


# As a flood leaves it: in the heap of a thread that still runs, its last block in use.
FLOODED = """
import os, threading
from tpiedge.host.process import FreedMemory, rss_bytes
flooded, over = threading.Event(), threading.Event()

def flood():
    blocks = [bytearray(b"x" * 9000) for _ in range(4000)]
    last = blocks.pop()
    del blocks
    flooded.set()
    over.wait()

before = rss_bytes(os.getpid())
threading.Thread(target=flood).start()
flooded.wait()
kept = rss_bytes(os.getpid()) - before
FreedMemory().give_back(0.0)
print(kept, rss_bytes(os.getpid()) - before)
over.set()
"""


def test_memory_freed_by_a_running_thread_is_returned() -> None:
    kept, left = printed_by(FLOODED)
    assert left < 8 * MIB
    assert left <= kept


def test_heaps_are_trimmed_at_most_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    freed = FreedMemory()
    monkeypatch.setattr(freed, "_trim", trims.append)
    for now in (5.0, 5.1, 14.9, 15.0, 15.1, 1000.0):
        freed.give_back(now)
    assert trims == [0, 0, 0]
