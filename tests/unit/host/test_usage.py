"""What a process says about itself."""

import subprocess
import sys

import pytest

from tpiedge.units import MIB


def printed_by(program: str, *arguments: str) -> int:
    return int(
        subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True).stdout
    )


# A mapping of its own: what malloc has freed may stay resident, in a process that has done much for good.
FORGETS = """
import mmap
from tpiedge.host.usage import forget_peak_rss, peak_rss_bytes
block = mmap.mmap(-1, 128 << 20)
block.write(b"x" * len(block))
block.close()
before = peak_rss_bytes()
forget_peak_rss()
print(before - peak_rss_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="system: only Linux can forget a peak")
def test_a_peak_can_be_forgotten():
    assert printed_by(FORGETS) > 64 * MIB


# Blocks that glibc takes from its heap once it has seen larger ones freed, the last of which keeps the heap's end.
KEEPS = """
import os, sys
from tpiedge.host.usage import give_back_what_is_freed, rss_bytes
larger = bytearray(b"x" * (16 << 20))
del larger
if sys.argv[1] == "back":
    give_back_what_is_freed()
before = rss_bytes(os.getpid())
blocks = [bytearray(b"x" * (512 << 10)) for _ in range(100)]
last = blocks.pop()
del blocks
print(rss_bytes(os.getpid()) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="system: the C library is Linux's")
def test_what_is_freed_goes_back_to_the_system():
    kept, back = (printed_by(KEEPS, how) for how in ("keep", "back"))
    assert back < 8 * MIB
    assert back <= kept  # other C libraries keep nothing
