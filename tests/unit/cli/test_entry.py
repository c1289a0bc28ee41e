"""Standard files that are closed at the start count as /dev/null."""

import subprocess
import sys
from pathlib import Path

import pytest

LOOK = """
import os, sys
from tpiedge.cli.entry import open_standard_files
open_standard_files()
names = [os.path.realpath(f"/proc/self/fd/{number}") for number in (0, 1, 2)]
inherited = [os.get_inheritable(number) for number in (0, 1, 2)]
files = [sys.stdin, sys.stdout, sys.stderr]
assert all(inherited) and [one.fileno() for one in files] == [0, 1, 2], (inherited, files)
assert not sys.stderr.isatty() and not sys.stdin.read()
print("out")
print("err", file=sys.stderr, flush=True)
next_free = os.open("/", os.O_RDONLY)
open(sys.argv[1], "w").write("\\n".join([*names, str(next_free)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="system: /proc names what is open")
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_each_is_there_and_leads_nowhere(closed: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "names"
    closing = " ".join(f"{number}>&-" for number in closed)
    command = ["sh", "-c", f'exec "$0" "$@" {closing}', sys.executable, "-c", LOOK, str(path)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    *names, next_free = path.read_text().split("\n")
    assert [names[number] for number in closed] == ["/dev/null"] * len(closed)
    assert int(next_free) > max(closed), "no other file gets the number of a standard file"
    assert ended.stdout == ("" if 1 in closed else "out\n")
    assert ended.stderr == ("" if 2 in closed else "err\n")
