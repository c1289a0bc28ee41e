"""The two lines between a standby node and its parent, and how lines are cut out of what arrives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import ProtocolError
from tpiedge.launch.bootstrap import NodeBootstrap
from tpiedge.launch.readiness import NOT_MEASURED, NodeReport, StandbyOrder
from tpiedge.node.process import Lines
from tpiedge.wire.epochs import Capacity

ORDER = StandbyOrder(True, 2)
REPORT = NodeReport(4242, "a CPU", "avx2", Capacity(2, 3e9, 4e9))
BOOTSTRAP = NodeBootstrap(1, "tcp://h:1", "m", "p", "s", 2, 0.3, 1.5, 60.0)


def test_both_lines_come_back():
    assert StandbyOrder.from_line(ORDER.to_line()) == ORDER
    assert NodeReport.from_line(REPORT.to_line()) == REPORT
    assert b"\n" not in ORDER.to_line() + REPORT.to_line() + BOOTSTRAP.to_line()


@pytest.mark.parametrize("line", [BOOTSTRAP.to_line(), b"", b"nonsense", b"[]", b'{"standby": 1}', b"\xff"])
def test_whatever_else_is_left_to_the_bootstrap(line):
    assert StandbyOrder.from_line(line) is None


@pytest.mark.parametrize("line", [b'{"standby": true, "speed": 9}', b'{"standby": true}'])
def test_an_order_that_is_none_is_refused(line):
    with pytest.raises(ProtocolError, match="not an order"):
        StandbyOrder.from_line(line)


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b'{"capacity": 1}', b"3", REPORT.to_line()[:-1]])
def test_a_report_that_is_none_is_refused(line):
    with pytest.raises(ProtocolError, match="not the report"):
        NodeReport.from_line(line)


def test_nothing_measured_is_all_zero():
    assert NodeReport.from_line(NodeReport(1, "", "torch", NOT_MEASURED).to_line()).capacity == NOT_MEASURED


@given(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=5), st.data())
def test_lines_come_whole_however_they_arrive(wanted, data):
    stream = b"".join(line + b"\n" for line in wanted) + b"rest"
    lines = Lines()
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        lines.feed(stream[:count])
        stream = stream[count:]
    found = []
    while lines.waiting:
        found.append(lines.next())
    assert found == wanted
