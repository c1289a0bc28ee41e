import pytest

from tpiedge.launch.bootstrap import NodeBootstrap, Timing
from tpiedge.node.node import Node
from tpiedge.transport.keys import CurveKeys


@pytest.mark.parametrize("trace", ["", "missing/part"])
def test_unwritable_trace_is_reported_on_stderr(trace, tmp_path, capsys):
    keys, path = CurveKeys.generate(), str(tmp_path / trace) if trace else ""
    node = Node(NodeBootstrap(1, 1, "tcp://127.0.0.1:9", keys.public, keys, Timing(), trace=path))
    node.close()
    line = f"tpiedge: the trace of node 1 is lost: cannot write {path}: No such file or directory\n"
    assert capsys.readouterr().err == (line if trace else "")
