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
