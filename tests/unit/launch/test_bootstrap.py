"""The lines between a node and its parent, how lines are cut out of what arrives, and which silences count."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.errors import ProtocolError
from tpiedge.launch.bootstrap import NodeBootstrap, NodeReport, OwnStalls, StandbyOrder
from tpiedge.node.process import Lines
from tpiedge.wire.epochs import Capacity

BOOTSTRAP = NodeBootstrap(1, "tcp://h:1", "m", "p", "s", 2, 0.3, 1.5, 60.0, trace="/tmp/part")
ORDER = StandbyOrder(True, 2)
REPORT = NodeReport(4242, "a CPU", "avx2", Capacity(2, 3e9, 4e9))


def test_all_lines_come_back() -> None:
    for one in (BOOTSTRAP, ORDER, REPORT):
        assert type(one).from_line(one.to_line()) == one
        assert b"\n" not in one.to_line()


@pytest.mark.parametrize("line", [BOOTSTRAP.to_line(), b"", b"nonsense", b"[]", b'{"standby": 1}', b"\xff"])
def test_whatever_is_no_order_is_left_to_the_bootstrap(line: bytes) -> None:
    assert StandbyOrder.from_line(line) is None


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        *((StandbyOrder, line) for line in (b'{"standby": true, "speed": 9}', b'{"standby": true}')),
        *((NodeReport, line) for line in (b"", b"[]", b"{}", b'{"capacity": 1}', REPORT.to_line()[:-1])),
        (NodeBootstrap, b"{}"),
    ],
)
def test_what_another_version_writes_is_refused(
    kind: type[StandbyOrder] | type[NodeReport] | type[NodeBootstrap], line: bytes
) -> None:
    with pytest.raises(ProtocolError, match=r"not an order|not the report|not a node's bootstrap"):
        kind.from_line(line)


@given(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=5), st.data())
def test_lines_come_whole_however_they_arrive(wanted: list[bytes], data: st.DataObject) -> None:
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


@given(st.lists(st.sampled_from([0.0, 0.3, 0.31, 2.0]), max_size=30))
def test_a_late_heartbeat_judges_nobody_and_the_next_one_does(late: list[float]) -> None:
    stalls = OwnStalls(0.3)
    excused = [stalls.beat(late_s) for late_s in late]
    assert not any(one and other for one, other in pairwise(excused))
    assert excused[:1] == [late_s > 0.3 for late_s in late[:1]]
