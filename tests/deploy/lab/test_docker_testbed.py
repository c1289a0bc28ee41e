"""A testbed of containers: limits and links are real, commands run as if they ran here, nothing is left.

The image takes minutes to build; elsewhere than where containers can run each test says why it was skipped.
"""

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest

from tests.deploy.engine import Engine
from tests.process.command import COMMAND, Ended, run_command, text_of_one_node, wait_for
from tpiedge.lab.testbed.docker_engine import LABEL
from tpiedge.units import MIB

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

TEXT = """
[defaults]
latency = "1 ms"
rate = "100 Mbit/s"
[[router]]
name = "house"
[[router]]
name = "room"
uplink = "house"
[[device]]
name = "desk"
uplink = "house"
[[device]]
name = "shelf"
uplink = "room"
cpus = 0.5
memory = "800 MiB"
swap = "100 MiB"
[[device]]
name = "window"
uplink = "room"
memory = "800 MiB"
"""
#: What measuring itself may add on a busy computer.
ABSOLUTE_S, RELATIVE = 0.3e-3, 0.05
ATTEMPTS = 8
TAKE = "import sys; kept = b'x' * int(sys.argv[1]); print(len(kept))"
SPIN = """
import time
end = time.monotonic() + 1.5
while time.monotonic() < end:
    pass
print(time.process_time() / 1.5)
"""
PROMPT = "Once upon a time"
TOKENS = 16
ASK = """
import json, sys, urllib.request
asked = {"model": "demo", "prompt": sys.argv[1], "max_tokens": int(sys.argv[2]), "temperature": 0}
request = urllib.request.Request(
    "http://127.0.0.1:8080/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
)
with urllib.request.urlopen(request, timeout=60) as answer:
    print(json.load(answer)["choices"][0]["text"], end="")
"""
READY_S = 120.0

Run = Callable[..., Ended]


@pytest.fixture(scope="module")
def run(engine: Engine, image: str) -> Run:
    """`tpiedge testbed ...`, as a user who only reaches the engine."""

    def command(*arguments: object, status: int | None = 0, **options: str) -> Ended:
        ended = run_command("testbed", *arguments, DOCKER_HOST=engine.url, **options)
        assert status in (None, ended.status), ended.err
        return ended

    return command


@pytest.fixture(scope="module")
def file(folder: Path) -> str:
    path = folder / "home.toml"
    path.write_text(TEXT)
    return str(path)


@contextmanager
def up(run: Run, file: str, image: str) -> Iterator[str]:
    name = f"t{secrets.token_hex(4)}"
    try:
        run("up", file, "--name", name, "--backend", "docker", "--image", image)
        yield name
    finally:
        run("down", name)


@pytest.fixture(scope="module")
def bed(run: Run, file: str, image: str) -> Iterator[str]:
    with up(run, file, image) as name:
        yield name


@pytest.fixture
def own_bed(run: Run, file: str, image: str) -> Iterator[str]:
    """Yields a testbed of its own for a test that breaks it."""
    with up(run, file, image) as name:
        yield name


def containers(engine: Engine, name: str) -> list:
    with engine.client() as client:
        return client.containers.list(all=True, filters={"label": f"{LABEL}={name}"}, ignore_removed=True)


def container(engine: Engine, name: str, member: str):
    return next(each for each in containers(engine, name) if each.name == f"tpiedge.{name}.{member}")


def status_of(run: Run, name: str) -> dict:
    record = json.loads(run("status", name, "--json").out)
    assert record["backend"] == "docker"
    return record


def python(run: Run, bed: str, device: str, *arguments: object, status: int = 0) -> str:
    return run("exec", bed, device, "--", "python", "-c", *arguments, status=status).out


def checked(run: Run, bed: str, right: Callable[[dict], bool]) -> list[dict]:
    """Pairs of devices as measured, each when it was `right` for the first time: other work on this computer, which
    comes between, spares now one, now another."""
    found: dict[tuple[str, str], dict] = {}
    wrong = []
    for _ in range(ATTEMPTS):
        pairs: list[dict] = json.loads(run("check", bed, "--json").out)["pairs"]
        for pair in pairs:
            if right(pair):
                found.setdefault((pair["from"], pair["to"]), pair)
            else:
                wrong.append(pair)
        if len(found) == len(pairs):
            return [found[pair["from"], pair["to"]] for pair in pairs]
    pytest.fail(f"measured again and again: {wrong}")


def right_rtt(pair: dict) -> bool:
    slack_s = RELATIVE * pair["expected_rtt_s"] + ABSOLUTE_S
    return abs(pair["rtt_s"] - pair["expected_rtt_s"]) <= slack_s


def test_running_testbed_matches_its_file(run, engine, bed, file, image):
    record = status_of(run, bed)
    assert record["state"] == "up"
    assert [(device["name"], device["address"], device["there"]) for device in record["devices"]] == [
        ("desk", "10.77.0.1", True),
        ("shelf", "10.77.0.2", True),
        ("window", "10.77.0.3", True),
    ]
    made = [container(engine, bed, name).attrs["HostConfig"] for name in ("desk", "shelf", "window")]
    assert [(host["CpuQuota"], host["CpuPeriod"]) for host in made] == [(0, 0), (5000, 10_000), (0, 0)]
    assert [host["Memory"] for host in made] == [0, 800 * MIB, 800 * MIB]
    assert [host["MemorySwap"] for host in made] == [0, 900 * MIB, 800 * MIB]
    assert {host["NetworkMode"] for host in made} == {"none"}
    assert not any(host["Privileged"] or host["CapAdd"] or host["Devices"] for host in made)
    assert bed in run("status").out
    assert bed in [each["name"] for each in json.loads(run("ls", "--json").out)["up"]]


def test_links_match_latency_and_rate_of_the_file(run, bed):
    assert [pair["latency_s"] for pair in status_of(run, bed)["pairs"][:2]] == [0.003, 0.003]
    pairs = checked(run, bed, lambda pair: right_rtt(pair) and abs(pair["rate_deviation"]) <= RELATIVE)
    assert [(pair["from"], pair["to"]) for pair in pairs] == [("desk", "shelf"), ("desk", "window")]
    assert [pair["expected_rtt_s"] for pair in pairs] == pytest.approx([0.006, 0.006])


def test_link_settings_change_while_the_testbed_runs(run, bed):
    """Only that way, and what is not said stays."""
    run("link", bed, "desk", "--latency", "20ms", "--up")
    pair = checked(run, bed, right_rtt)[0]
    assert pair["expected_rtt_s"] == pytest.approx(0.025)
    up_link, down_link = (link for link in status_of(run, bed)["links"] if link["member"] == "desk")
    assert (up_link["latency_s"], down_link["latency_s"]) == (0.02, 0.001)
    assert up_link["bytes_per_s"] == down_link["bytes_per_s"] == 12.5e6
    assert up_link["counters"]["packets"] > 0
    assert "choose" in run("link", bed, "house", "--latency", "1ms", status=2).err
    run("link", bed, "desk", "--latency", "1ms")
    assert status_of(run, bed)["pairs"][0]["latency_s"] == pytest.approx(0.003)


def test_exec_passes_stdin_output_and_exit_status(run, bed):
    shown = run(
        "exec",
        bed,
        "shelf",
        "--",
        "sh",
        "-c",
        "cat; hostname; echo bad >&2; exit 7",
        stdin="hello\n",
        status=7,
    )
    assert (shown.out, shown.err) == ("hello\nshelf\n", "bad\n")
    assert run("exec", bed, "desk", "--", "nope", status=127).out == ""
    assert "it has desk, shelf, window" in run("exec", bed, "phone", "--", "true", status=2).err


def test_exec_forwards_signals_to_the_command(engine, bed):
    waits = 'trap "echo ended; exit 3" TERM; echo waits; while :; do sleep 0.05; done'
    words = [COMMAND, "testbed", "exec", bed, "desk", "--", "sh", "-c", waits]
    environment = os.environ | {"DOCKER_HOST": engine.url}
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"waits\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.read() == b"ended\n"
            assert process.wait(20) == 3
        finally:
            process.kill()


def test_exec_forwards_terminal_keys_and_size(engine, bed):
    environment = os.environ | {"DOCKER_HOST": engine.url, "TERM": "dumb"}
    shell = pexpect.spawn(
        COMMAND,
        ["testbed", "exec", bed, "desk", "--", "sh"],
        env=environment,
        dimensions=(31, 97),
        timeout=20,
    )
    try:
        shell.expect(r"\$ ")
        shell.sendline("stty size")
        shell.expect("\n31 97")
        shell.setwinsize(29, 93)
        # An engine takes a new size when it gets to it.
        shell.sendline("until stty size | grep -q '29 9[3]'; do sleep 0.1; done; echo fi''ts")
        shell.expect("fits")
        shell.sendline("echo go; sleep 600")
        shell.expect("\ngo")
        shell.sendintr()
        shell.expect(r"\$ ")
        shell.sendline("exit 5")
        shell.expect(pexpect.EOF)
    finally:
        shell.close()
    assert shell.exitstatus == 5


def test_a_cluster_answers_over_the_links(run, engine, bed, folder):
    """Master and workers, each in a container of its own, started as a user would."""
    environment = os.environ | {"DOCKER_HOST": engine.url}
    token_file = "/tmp/token"
    processes = []

    def start(device: str, *words: str) -> Path:
        log = folder / f"{device}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [COMMAND, "testbed", "exec", bed, device, "--", "tpiedge", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        processes.append(process)
        return log

    def token() -> str:
        return run("exec", bed, "desk", "--", "cat", token_file, status=None).out.strip()

    try:
        log = start("desk", "master", "--model", "demo", "--min-workers", "2", "--token-file", token_file)
        wait_for(token, READY_S)
        for device in ("shelf", "window"):
            start(device, "worker", "--connect", "10.77.0.1", "--token", token())
        wait_for(lambda: "ready: 3 nodes" in log.read_text(), READY_S)
        assert python(run, bed, "desk", ASK, PROMPT, TOKENS) == text_of_one_node(PROMPT, TOKENS)
        links = {(link["member"], link["way"]): link for link in status_of(run, bed)["links"]}
        assert links["room", "down"]["counters"]["packets"] > 100
    finally:
        for process in reversed(processes):
            process.terminate()
        assert [process.wait(30) for process in processes] == [0, 0, 0]


def test_killed_device_or_switch_is_noticed(run, engine, own_bed):
    """A device; then the switch."""
    container(engine, own_bed, "shelf").kill()
    there = {device["name"]: device["there"] for device in status_of(run, own_bed)["devices"]}
    assert there == {"desk": True, "shelf": False, "window": True}
    assert "the container of shelf has ended" in run("exec", own_bed, "shelf", "--", "true", status=4).err
    container(engine, own_bed, "SWITCH").kill()
    record = status_of(run, own_bed)
    assert (record["state"], record["switch_pids"]) == ("broken", [])
    assert "has ended: tpiedge testbed down" in run("check", own_bed, status=2).err


def test_next_up_removes_what_a_killed_up_left(run, engine, file, image):
    """Killed as soon as its first containers are there."""
    name = f"t{secrets.token_hex(4)}"
    words = [COMMAND, "testbed", "up", file, "--name", name, "--backend", "docker", "--image", image]
    with subprocess.Popen(
        words, stderr=subprocess.DEVNULL, env=os.environ | {"DOCKER_HOST": engine.url}
    ) as process:
        wait_for(lambda: len(containers(engine, name)) >= 2, 20)
        process.kill()
    try:
        assert status_of(run, name)["state"] == "abandoned"
        again = run("up", file, "--name", name, "--backend", "docker", "--image", image)
        assert "removed what an earlier command left" in again.err
        assert status_of(run, name)["state"] == "up"
    finally:
        assert f"{name} is down" in run("down", name).err
    assert containers(engine, name) == []
    assert f"there is no testbed {name}" in run("down", name).err
