import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed import containers
from tpiedge.lab.testbed.containers import Containers, DockerTestbeds
from tpiedge.lab.testbed.description import Link, load_scenario
from tpiedge.lab.testbed.docker_engine import (
    LABEL,
    MEMBER,
    PLAN_FILE,
    SWITCH,
    Container,
    ContainerEngine,
    Maker,
    device_spec,
    maker_of,
    switch_spec,
)
from tpiedge.lab.testbed.state import Owner
from tpiedge.lab.testbed.switch import SwitchPlan

SCENARIO = load_scenario("pair", "home")
GONE = replace(Maker.own(), process=replace(Owner.own(), pid=2**22 + 1))
ELSEWHERE = replace(Maker.own(), node="another-computer")


class Remembering:
    """An engine without containers in it. `says`: the switch's log; `fails`: the container that does not start."""

    processors = 4

    def __init__(self, says: str = "ready\n", fails: str = "", answers: tuple[dict, ...] = ()) -> None:
        self.there: dict[str, Container] = {}
        self.files: dict[str, bytes] = {}
        self.requests: list[dict] = []
        self._says, self._fails = says, fails
        self._answers = iter(answers)
        self._numbers = count(100)

    def require_image(self, image: str) -> None:
        """Finds every image."""

    def found(self, label: str) -> list[Container]:
        key, _, value = label.partition("=")
        return [
            each
            for each in self.there.values()
            if key in each.labels and (not value or each.labels[key] == value)
        ]

    def create(self, spec, _image):
        if spec.name in self.there:
            raise UserError("in use")
        self.there[spec.name] = Container(spec.name, spec.labels, "created", 0, ("", ""), False)
        return spec.name, ["no swap here"]

    def start(self, container: str) -> Container:
        if container.endswith(self._fails or "?"):
            raise ResourceError(f"{container} does not start")
        number = next(self._numbers)
        self.there[container] = replace(
            self.there[container], status="running", pid=number, started=(str(number), "")
        )
        return self.there[container]

    def status(self, container: str) -> str:
        return self.there[container].status

    def log(self, container: str) -> str:
        return self._says

    def put(self, container: str, path: str, content: bytes) -> None:
        self.files[path] = content

    def remove(self, container: str) -> None:
        del self.there[container]

    def run(self, container: str, command) -> tuple[str, str]:
        self.requests.append(json.loads(command[-1]))
        return json.dumps(next(self._answers)), ""

    def leave(self, member: str, status: str, maker: Maker = GONE) -> None:
        """Leaves a container as an earlier command did."""
        labels = dict(switch_spec("home", SCENARIO.text, maker).labels)
        labels = labels if member == SWITCH else {LABEL: "home", MEMBER: member}
        running = status == "running"
        name = f"tpiedge.home.{member}"
        self.there[name] = Container(name, labels, status, 99 if running else 0, ("1", ""), False)


@pytest.fixture
def said() -> list[str]:
    return []


def beds(engine: Remembering) -> DockerTestbeds:
    return DockerTestbeds(engine, "image")


def up(engine: Remembering, said: list[str]) -> Containers:
    beds(engine).up(SCENARIO, said.append)
    found = beds(engine).find("home")
    assert found is not None
    return found


def test_up_creates_containers_and_down_removes_them(said) -> None:
    """The switch is made first, and started last, with a plan that enters the devices by their processes."""
    engine = Remembering()
    found = up(engine, said)
    assert next(iter(engine.there)) == "tpiedge.home.SWITCH"
    assert maker_of(engine.there["tpiedge.home.SWITCH"].labels) == Maker.own()
    assert found.topology.description == SCENARIO.description
    assert (found.state, found.pids) == ("up", {"device1": 100, "device2": 101})
    assert found.connected("device1")
    assert not found.connected("device9")
    plan = SwitchPlan.from_json(engine.files[PLAN_FILE].decode())
    assert [port.namespace for port in plan.ports] == ["/proc/100/ns/net", "/proc/101/ns/net"]
    assert beds(engine).names() == ["home"]
    assert beds(engine).down("home")
    assert (engine.there, beds(engine).find("home"), beds(engine).down("home")) == ({}, None, False)


def test_second_up_is_refused_and_changes_nothing(said) -> None:
    engine = Remembering()
    before = up(engine, said)
    with pytest.raises(UserError, match="is up already"):
        up(engine, said)
    assert beds(engine).find("home") == before


@pytest.mark.parametrize(
    "left",
    [
        [("device1", "running")],
        [(SWITCH, "created")],
        [(SWITCH, "created"), ("device1", "running"), ("device2", "created")],
        [(SWITCH, "exited"), ("device1", "exited")],
    ],
)
def test_containers_of_a_killed_command_are_removed(left, said) -> None:
    engine = Remembering()
    for member, status in left:
        engine.leave(member, status)
    found = beds(engine).find("home")
    assert found is not None
    assert found.state == "abandoned"
    assert up(engine, said).state == "up"
    assert "removed what an earlier command left of home" in said


def test_ended_switch_makes_the_testbed_broken(said) -> None:
    engine = Remembering()
    up(engine, said)
    engine.there["tpiedge.home.SWITCH"] = replace(engine.there["tpiedge.home.SWITCH"], status="exited", pid=0)
    found = beds(engine).find("home")
    assert found is not None
    assert found.state == "broken"
    with pytest.raises(ResourceError, match="has ended"):
        containers.ask(engine, found, {"do": "state", "pids": {}})
    with pytest.raises(UserError, match="is up already"):
        up(engine, said)


def test_link_change_is_sent_to_the_switch_and_kept(said) -> None:
    earlier = {"device1": [{"latency_s": 0.5}, {"latency_s": 0.25}]}
    engine = Remembering(answers=({"links": earlier}, {}))
    up(engine, said)
    engine.there["tpiedge.home.device2"] = replace(
        engine.there["tpiedge.home.device2"], status="exited", pid=0
    )

    def change(up_link: Link, down_link: Link) -> tuple[Link, Link]:
        return replace(up_link, loss=0.1), down_link

    beds(engine).change_link("home", "device1", change)  # another device has ended meanwhile
    told = engine.requests[-1]
    assert told["links"]["device1 up"]["loss"] == 0.1
    assert told["links"]["device1 up"]["latency_s"] == pytest.approx(0.5, rel=1e-3)
    assert told["links"].keys() == {"device1 up", "device1 down"}
    up_link, down_link = (Link(**link) for link in told["remember"]["device1"])
    assert (up_link, down_link) == (Link(latency_s=0.5, loss=0.1), Link(latency_s=0.25))


def test_device_limits_become_docker_flags() -> None:
    """Short periods, as namespaces have; memory and swap are counted together. More processors than the engine has are
    no limit."""
    limits = {"cpus": 0.25, "memory_bytes": 64 << 20, "swap_bytes": 1 << 20}
    device = replace(SCENARIO.description.devices[0], **limits)
    limited = (
        "--init",
        "--cpu-quota=2500",
        "--cpu-period=10000",
        "--memory=67108864b",
        "--memory-swap=68157440b",
    )
    assert device_spec("home", device, 4).flags == limited
    assert device_spec("home", replace(device, cpus=4, memory_bytes=None), 4).flags == ("--init",)


#: Runs what is to run in a container here.
DOCKER = """#!/bin/sh
test "$1" = exec || { echo "cannot connect" >&2; exit 1; }
shift
while case "$1" in --*) true;; *) false;; esac; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


RUN = "import sys; from tpiedge.lab.testbed.docker_engine import run_here; sys.exit(run_here('c', sys.argv[1:]))"


@pytest.mark.slow
@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_exec_forwards_stdio_exit_status_and_signals(number: signal.Signals) -> None:
    waits = 'trap "echo ended; exit 3" TERM INT; read word; echo $word; while :; do sleep 0.05; done'
    command = [sys.executable, "-c", RUN, "sh", "-c", waits]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print("hello", file=process.stdin, flush=True)
        assert process.stdout.readline() == "hello\n"
        process.send_signal(number)
        assert process.stdout.read() == "ended\n"
        assert process.wait(20) == 3


@pytest.mark.usefixtures("docker")
def test_unreachable_docker_error_says_to_start_it() -> None:
    with pytest.raises(
        UserError, match="no docker engine answers: start it, or say in DOCKER_HOST where it is"
    ):
        ContainerEngine()


def test_missing_docker_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="need docker, which is not installed"):
        ContainerEngine()
