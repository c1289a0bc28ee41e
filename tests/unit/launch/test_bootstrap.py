from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import ProtocolError
from tpiedge.launch.bootstrap import (
    NodeBootstrap,
    NodeReport,
    OwnStalls,
    Timing,
    from_line,
    to_line,
)
from tpiedge.transport.keys import CurveKeys
from tpiedge.wire.epochs import Capacity

BOOTSTRAP = NodeBootstrap(1, 7, "tcp://h:1", "m", CurveKeys("p", "s"), Timing(), trace="/tmp/part")
REPORT = NodeReport("avx2", Capacity(3e9, 4e9))


def test_bootstrap_lines_round_trip() -> None:
    for one in (BOOTSTRAP, 2, REPORT):
        assert from_line(to_line(one), type(one)) == one
        assert b"\n" not in to_line(one)


def test_bootstrap_path_need_not_be_unicode() -> None:
    odd = replace(BOOTSTRAP, pack="/srv/mod\udcffles", pages="/tmp/\udc80")
    assert from_line(to_line(odd), NodeBootstrap) == odd


@pytest.mark.parametrize("kind", [int, NodeReport, NodeBootstrap])
@pytest.mark.parametrize(
    "line", [b"", b"[]", b"{}", b'{"cpu": "\xff"}', b'{"threads": "2", "measure": 1}', to_line(REPORT)[:-1]]
)
def test_bootstrap_line_of_another_version_is_refused(kind, line):
    with pytest.raises(ProtocolError, match=f"is no {kind.__name__} .*: start nodes with"):
        from_line(line, kind)


@given(st.lists(st.sampled_from([0.0, 0.3, 0.31, 2.0]), max_size=30))
def test_own_stall_is_never_reported_twice_in_a_row(late: list[float]) -> None:
    stalls = OwnStalls(0.3)
    stalled = [stalls.beat(late_s) for late_s in late]
    assert not any(one and other for one, other in pairwise(stalled))
    assert stalled[:1] == [late_s > 0.3 for late_s in late[:1]]
