import subprocess
import sys
from unittest.mock import Mock, call

import pytest

from tpiedge.errors import Misconduct
from tpiedge.node.node import Node
from tpiedge.wire.control import Accused, Failed


def test_what_only_the_compilers_of_torch_need_is_left_out() -> None:
    code = "from tpiedge.node.process import import_engine\nimport_engine()\nimport sys\nprint(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    imported = set(ended.stdout.split())
    assert {"torch", "tpiedge.engine.runner"} <= imported
    assert "torch._decomp.decompositions" not in imported


@pytest.mark.fault("W2", "rank 0 accuses the node that the collective names, and no other rank does")
def test_rank_0_accuses_who_broke_the_protocol() -> None:
    link, failed = Mock(), [call(Failed(7, rank, "", "Misconduct", "a NaN")) for rank in (0, 2)]
    for rank in (0, 2):
        Node.report(Mock(_bootstrap=Mock(rank=rank), _epoch=7, link=link), Misconduct(1, "a NaN"))
    assert link.post.mock_calls == [call(Accused(7, 0, 1, "a NaN")), *failed]
