"""`tpiedge run --testbed`: the same tokens over emulated devices, in one command that leaves nothing behind."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.command import run_command, wait_for
from tests.process.lab.refused import refusal
from tests.process.lab.testbed.beds import bed_name, left_of, removed, why_no_testbed, written
from tpiedge.lab.testbed.running import open_testbed
from tpiedge.lab.testbed.state import read_state
from tpiedge.lab.testbed.testbed import members, switches

REASON = why_no_testbed()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.timeout(120)]

ASK = ("--model", "demo", "--raw", "--prompt", "Once upon a time", "--temperature", 0, "--threads", 1)
THREE = """
[defaults]
latency = "0.5 ms"
jitter = "0.3 ms"
rate = "200 Mbit/s"
memory = "1 GB"
[[router]]
name = "router"
[[device]]
name = "fast"
uplink = "router"
cpus = 2
[[device]]
name = "slow"
uplink = "router"
cpus = 1
[[device]]
name = "lossy"
uplink = "router"
cpus = 1
loss = "0.5 %"
"""


@pytest.fixture
def three(bed: str, tmp_path: Path) -> str:
    return written(tmp_path, bed, THREE)


def test_testbed_run_gives_same_tokens_and_leaves_nothing(
    bed: str, three: str, generate: Callable[..., dict]
) -> None:
    ended = run_command("run", *ASK, "--max-tokens", 16, "--json", "--testbed", three)
    assert ended.status == 0, ended.err
    (line,) = ended.out.splitlines()
    found = json.loads(line)
    assert left_of(bed) == []
    assert len(found["token_ids"]) == 16
    assert found["token_ids"] == generate(*ASK, "--max-tokens", 16)["token_ids"]
    shares = [node["ffn_units"][1] - node["ffn_units"][0] for node in found["nodes"]]
    assert len(shares) == 3
    assert shares[0] > shares[1]
    assert abs(shares[1] - shares[2]) <= 1


def carried(bed: str) -> list[int]:
    links = json.loads(run_command("testbed", "status", bed, "--json").out)["links"]
    return [link["counters"]["bytes"] for link in links]


def test_demo_on_a_running_testbed_leaves_it_up(bed: str, three: str) -> None:
    assert run_command("testbed", "up", three).status == 0
    before = switches(bed)
    ended = run_command("demo", "--max-tokens", 8, "--testbed", bed)
    assert ended.status == 0, ended.err
    assert "Starting 3 processes" in ended.err
    assert ended.out.startswith("Once upon a time")
    assert switches(bed) == before
    assert all(count > 10_000 for count in carried(bed))


def test_interrupted_run_takes_its_testbed_down(bed: str, three: str, start) -> None:
    started = start("run", *ASK, "--max-tokens", 400, "--ignore-eos", "--testbed", three)
    started.wait_for_output()
    assert all(members(bed, device) for device in ("fast", "slow", "lossy"))
    started.process.send_signal(signal.SIGINT)
    ended = started.finish(20)
    assert ended.status == 130, ended.err
    assert left_of(bed) == []


def test_next_up_removes_testbed_of_a_killed_run(bed: str, three: str, start) -> None:
    started = start("run", *ASK, "--max-tokens", 400, "--ignore-eos", "--testbed", three)
    started.wait_for_output()
    assert left_of(bed)
    with removed(bed_name()) as living:
        with open_testbed("pair", name=living):
            assert left_of(bed), "its owner lives"
        started.process.kill()
        started.finish()
        ended = run_command("testbed", "up", "pair", "--name", living)
        assert ended.status == 0, ended.err
        wait_for(lambda: left_of(bed) == [], 10)  # tests beside this one may have begun to remove it
        assert read_state(living) is not None


def test_too_small_device_memory_is_refused_before_start(bed: str, tmp_path: Path) -> None:
    path = written(tmp_path, bed, THREE.replace("1 GB", "64 MB"))
    ended = run_command("run", *ASK, "--testbed", path)
    assert ended.status == 4, ended.err
    assert "does not fit" in ended.err
    assert left_of(bed) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--testbed", "nope"), "there is no testbed 'nope'"),
        (("--testbed", "pair", "--nodes", 3), "--nodes 3 is more than the testbed pair has devices: 2"),
        (("--testbed", "pair", "--shares", "1,2,3"), "--shares"),
        (("--testbed", "pair", "--nodes", 0), "--nodes 0 is out of range"),
    ],
    ids=str,
)
def test_invalid_testbed_flags_are_refused(arguments: tuple[object, ...], said: str) -> None:
    status, words = refusal("run", *ASK, *arguments)
    assert status == 2
    assert said in words
