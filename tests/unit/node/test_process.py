import subprocess
import sys


def test_engine_import_skips_torch_decompositions() -> None:
    code = "from tpiedge.node.process import import_engine\nimport_engine()\nimport sys\nprint(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    imported = set(ended.stdout.split())
    assert {"torch", "tpiedge.engine.runner"} <= imported
    assert "torch._decomp.decompositions" not in imported
