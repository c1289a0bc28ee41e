"""A thread of a node fails while the engine thread waits: the process ends with words, which the log keeps."""

import subprocess
import sys

import pytest

from tpiedge.errors import InternalError

STUCK = """
import sys, threading
from tpiedge.node import node, process

class Stuck:
    def __init__(self, bootstrap): ...
    def run(self):
        threading.Thread(target=lambda: 1 / 0, name="tpiedge-zap").start()
        threading.Event().wait(60)
    def close(self): ...

node.Node = Stuck
sys.exit(process.run(None))
"""


@pytest.mark.fault("P2", "a thread of a node fails: the node ends and says which")
def test_node_ends_when_one_of_its_threads_fails() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=110, check=False
    )
    assert ended.returncode == InternalError.exit_code, ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("the thread tpiedge-zap failed: ZeroDivisionError: division by zero;")
