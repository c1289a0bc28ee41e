"""What a process says about itself."""

import sys

import pytest

from tpiedge.nodes.usage import forget_peak_rss, peak_rss_bytes
from tpiedge.units import MIB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget a peak")
def test_a_peak_can_be_forgotten():
    block = bytearray(128 * MIB)
    before = peak_rss_bytes()
    del block
    forget_peak_rss()
    assert peak_rss_bytes() < before - 64 * MIB
