"""kill -9 at any point of `up`: the next command finds and removes the rest, and can begin anew."""

import signal
import subprocess
import sys

import pytest

from tests.process.command import run_command, wait_for
from tests.process.lab.testbed.beds import bed_name, left_of, removed, why_no_testbed
from tpiedge.lab.testbed.description import load_scenario
from tpiedge.lab.testbed.running import open_testbed
from tpiedge.lab.testbed.state import read_state
from tpiedge.lab.testbed.testbed import down, switches, up

REASON = why_no_testbed()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

#: Dies at the given call of a function of a module.
DIES = """
import importlib, os, signal, sys
from tpiedge.lab.testbed.description import load_scenario
name, module, function, calls = sys.argv[1:5]
owner = importlib.import_module(module)
for part in function.split(".")[:-1]:
    owner = getattr(owner, part)
last = function.split(".")[-1]
original, left = getattr(owner, last), int(calls)
def deadly(*arguments, **options):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **options)
setattr(owner, last, deadly)
from tpiedge.lab.testbed.testbed import down, up
if owner.__name__ == "tpiedge.lab.testbed.testbed" and last in ("remove_namespace", "end_all"):
    down(name)
else:
    up(load_scenario("pair", name), print)
"""

POINTS = [
    ("tpiedge.lab.testbed.state", "TestbedState.write", 1),
    ("tpiedge.lab.testbed.testbed", "add_namespace", 1),
    ("tpiedge.lab.testbed.testbed", "add_namespace", 2),
    ("tpiedge.lab.testbed.isolation", "Controllers.make", 1),
    ("tpiedge.lab.testbed.isolation", "Controllers.make", 2),
    ("tpiedge.lab.testbed.testbed", "_start_switch", 1),
    ("tpiedge.lab.testbed.topology", "Topology.switch_plan", 1),
    ("tpiedge.lab.testbed.state", "TestbedState.write", 2),
]


def die(name: str, module: str, function: str, calls: int) -> bool:
    """Whether it was killed there; else it came through."""
    ended = subprocess.run(
        [sys.executable, "-c", DIES, name, module, function, str(calls)], capture_output=True, check=False
    )
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode != 0


@pytest.mark.parametrize(
    "point", [POINTS[0], POINTS[2], POINTS[4], POINTS[6]], ids=lambda point: f"{point[1]}-{point[2]}"
)
def test_down_removes_what_a_killed_up_has_left(bed: str, point: tuple[str, str, int]) -> None:
    assert die(bed, *point)
    found = read_state(bed)
    assert found is None or found.abandoned
    down(bed)
    assert left_of(bed) == []


@pytest.mark.parametrize("point", [POINTS[5], POINTS[7]], ids=lambda point: f"{point[1]}-{point[2]}")
def test_up_removes_what_a_killed_up_has_left(bed: str, point: tuple[str, str, int]) -> None:
    assert die(bed, *point)
    with open_testbed("pair", name=bed) as testbed:
        assert len(switches(bed)) == 1
        assert testbed.name == bed
    assert left_of(bed) == []


@pytest.mark.parametrize(("function", "calls"), [("end_all", 2), ("remove_namespace", 2)])
def test_next_up_cleans_up_after_a_killed_down(bed: str, function: str, calls: int) -> None:
    up(load_scenario("pair", bed), print)
    assert die(bed, "tpiedge.lab.testbed.testbed", function, calls)
    assert f"something is left of {bed}" in run_command("testbed", "status").err
    up(load_scenario("pair", bed), print)
    down(bed)
    assert left_of(bed) == []


@pytest.mark.fault("P20", "the next command removes a killed one's testbed")
def test_next_program_removes_testbed_of_a_killed_one(bed: str) -> None:
    hold = "import sys, time\nfrom tpiedge.lab.testbed.running import open_testbed\n"
    hold += "with open_testbed('pair', name=sys.argv[1]):\n"
    hold += "    print('up', flush=True)\n    time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold, bed], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"up\n"
        (switch,) = switches(bed)
        holder.kill()
    found = read_state(bed)
    assert found is None or found.abandoned  # tests beside this one remove it, too
    with open_testbed("pair", name=bed):
        assert switch not in switches(bed)
    assert left_of(bed) == []


def test_an_interrupted_up_leaves_nothing() -> None:
    with removed(bed_name()) as name:
        interrupt = DIES.replace("os.kill(os.getpid(), signal.SIGKILL)", "raise KeyboardInterrupt")
        for module, function, calls in POINTS[2::2]:
            ended = subprocess.run(
                [sys.executable, "-c", interrupt, name, module, function, str(calls)],
                capture_output=True,
                check=False,
            )
            assert b"KeyboardInterrupt" in ended.stderr, (function, calls)
            wait_for(lambda: left_of(name) == [], 5)
