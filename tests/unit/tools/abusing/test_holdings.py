import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from tools.abusing.holdings import FILES, growth, look, settle

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system: reads /proc")

_HOLDER = """
import sys
held = []
for line in sys.stdin:
    held += [open("/dev/null") for _ in range(int(line))]
    print("done", flush=True)
"""


@pytest.fixture
def holder() -> Iterator["subprocess.Popen[str]"]:
    """A process that opens as many files as it is told."""
    command = [sys.executable, "-c", _HOLDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_leaked_descriptor_is_seen(holder: "subprocess.Popen[str]") -> None:
    assert holder.stdin is not None
    assert holder.stdout is not None

    def roles() -> dict[str, list[int]]:
        return {"master": [holder.pid]}

    print(0, file=holder.stdin, flush=True)
    assert holder.stdout.readline() == "done\n"
    before = look(roles)
    more = partial(growth, before)
    assert settle(more, roles, 0.0)[1] == []
    print(FILES + 1, file=holder.stdin, flush=True)
    assert holder.stdout.readline() == "done\n"
    had = before["master"].files
    assert settle(more, roles, 0.0)[1] == [f"master: {had + FILES + 1} files instead of {had}"]
