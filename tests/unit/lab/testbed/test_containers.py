"""Bringing containers up and down on an engine that only remembers: what is left, what is refused, what is cleared."""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest

from tpiedge.errors import ResourceError, UserError
from tpiedge.lab.testbed.backends import NamespaceTestbeds, require_free
from tpiedge.lab.testbed.containers import agent as containers_agent
from tpiedge.lab.testbed.containers import backend as containers_backend
from tpiedge.lab.testbed.containers import testbed as containers
from tpiedge.lab.testbed.containers.backend import in_containers
from tpiedge.lab.testbed.containers.engine import Container, ContainerEngine, Ended
from tpiedge.lab.testbed.containers.plan import LABEL, MEMBER, PLAN_FILE, SWITCH, Maker, switch_spec
from tpiedge.lab.testbed.containers.testbed import Containers, bring_up, find, known_names, remove
from tpiedge.lab.testbed.description import Link
from tpiedge.lab.testbed.reading import load_scenario
from tpiedge.lab.testbed.switch.plan import SwitchPlan, check_plan

SCENARIO = load_scenario("pair", "home")
GONE = replace(containers._self(), pid=2**22 + 1)
ELSEWHERE = replace(containers._self(), node="another-computer")


class Remembering:
    """An engine without containers in it. `says`: the switch's log; `fails`: the container that does not start."""

    processors = 4

    def __init__(self, says: str = "ready\n", fails: str = "", answers: tuple[dict, ...] = ()) -> None:
        self.there: dict[str, Container] = {}
        self.files: dict[str, bytes] = {}
        self.asked: list[dict] = []
        self._says, self._fails = says, fails
        self._answers = iter(answers)
        self._numbers = count(100)

    def require_image(self, image: str) -> None:
        if image == "missing":
            raise UserError("no image")

    def found(self, label: str) -> list[Container]:
        key, _, value = label.partition("=")
        return [
            each
            for each in self.there.values()
            if key in each.labels and (not value or each.labels[key] == value)
        ]

    def create(self, spec):
        if spec.name in self.there:
            raise UserError("in use")
        self.there[spec.name] = Container(spec.name, spec.labels, "created", 0, ("", ""), False)
        return spec.name, ["no swap here"] if spec.memory_bytes else []

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

    def run(self, container: str, command) -> Ended:
        self.asked.append(json.loads(command[-1]))
        return Ended(0, json.dumps(next(self._answers)), "")

    def leave(self, member: str, status: str, maker: Maker = GONE) -> None:
        """As an earlier command did."""
        labels = dict(switch_spec("home", SCENARIO.text, "image", maker).labels)
        labels = labels if member == SWITCH else {LABEL: "home", MEMBER: member}
        running = status == "running"
        name = f"tpiedge.home.{member}"
        self.there[name] = Container(name, labels, status, 99 if running else 0, ("1", ""), False)


@pytest.fixture
def said() -> list[str]:
    return []


def up(engine: Remembering, said: list[str], image: str = "image") -> Containers:
    bring_up(engine, SCENARIO, image, said.append)
    found = find(engine, "home")
    assert found is not None
    return found


def test_from_up_to_down(said) -> None:
    """The switch is made first, and started last, with a plan that enters the devices by their processes."""
    engine = Remembering()
    found = up(engine, said)
    assert next(iter(engine.there)) == "tpiedge.home.SWITCH"
    assert (found.state, found.pids) == ("up", {"device1": 100, "device2": 101})
    assert found.connected("device1")
    assert not found.connected("device9")
    plan = SwitchPlan.from_json(engine.files[PLAN_FILE].decode())
    check_plan(plan)
    assert [port.namespace for port in plan.ports] == ["/proc/100/ns/net", "/proc/101/ns/net"]
    assert known_names(engine) == ["home"]
    assert remove(engine, "home")
    assert (engine.there, find(engine, "home"), remove(engine, "home")) == ({}, None, False)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (Remembering(says="error: no /dev/net/tun\n"), "no /dev/net/tun"),
        (Remembering(fails="device2"), "device2 does not start"),
        (Remembering(fails=SWITCH), "SWITCH does not start"),
    ],
)
def test_what_fails_leaves_nothing(broken: Remembering, reason: str, said) -> None:
    with pytest.raises(ResourceError, match=reason):
        up(broken, said)
    assert broken.there == {}


def test_without_its_image_nothing_is_made(said) -> None:
    engine = Remembering()
    with pytest.raises(UserError, match="no image"):
        up(engine, said, "missing")
    assert engine.there == {}


def test_a_second_one_is_refused_and_harms_nothing(said) -> None:
    engine = Remembering()
    before = up(engine, said)
    with pytest.raises(UserError, match="is up already"):
        up(engine, said)
    assert find(engine, "home") == before


@pytest.mark.parametrize(
    "left",
    [
        [("device1", "running")],
        [(SWITCH, "created")],
        [(SWITCH, "created"), ("device1", "running"), ("device2", "created")],
        [(SWITCH, "exited"), ("device1", "exited")],
    ],
)
def test_what_a_killed_command_left_is_cleared(left, said) -> None:
    engine = Remembering()
    for member, status in left:
        engine.leave(member, status)
    found = find(engine, "home")
    assert found is not None
    assert found.state == "abandoned"
    assert up(engine, said).state == "up"
    assert "removed what an earlier command left of home" in said


def test_one_that_is_on_its_way_is_left_alone(said) -> None:
    engine = Remembering()
    engine.leave(SWITCH, "created", containers._self())
    with pytest.raises(UserError, match="another command"):
        up(engine, said)
    assert list(engine.there) == ["tpiedge.home.SWITCH"]


def test_of_another_computer_nobody_is_waited_for(said) -> None:
    engine = Remembering()
    engine.leave(SWITCH, "created", ELSEWHERE)
    assert up(engine, said).state == "up"


def test_a_switch_that_ended_is_noticed(said) -> None:
    engine = Remembering()
    up(engine, said)
    engine.there["tpiedge.home.SWITCH"] = replace(engine.there["tpiedge.home.SWITCH"], status="exited", pid=0)
    found = find(engine, "home")
    assert found is not None
    assert found.state == "broken"
    with pytest.raises(ResourceError, match="has ended"):
        containers.ask(engine, found, {"do": "state", "pids": {}})
    with pytest.raises(UserError, match="is up already"):
        up(engine, said)


def test_a_device_that_was_started_again_has_lost_its_link(said) -> None:
    engine = Remembering()
    up(engine, said)
    engine.start("tpiedge.home.device1")
    found = find(engine, "home")
    assert found is not None
    assert (found.connected("device1"), found.connected("device2")) == (False, True)
    with pytest.raises(ResourceError, match="device1 has ended"):
        containers.measure(engine, found, "device1", "device2", 0.002)


def test_a_change_of_a_link_is_told_to_the_switch_and_remembered(said) -> None:
    """It builds on what was changed before."""
    earlier = {"device1": [{"latency_s": 0.5}, {"latency_s": 0.25}]}
    engine = Remembering(answers=({"links": earlier}, {}))
    up(engine, said)
    engine.there["tpiedge.home.device2"] = replace(
        engine.there["tpiedge.home.device2"], status="exited", pid=0
    )
    found = find(engine, "home")  # another device has ended meanwhile
    assert found is not None

    def change(up_link: Link, down_link: Link) -> tuple[Link, Link]:
        return replace(up_link, loss=0.1), down_link

    containers.change_link(engine, found, "device1", change)
    told = engine.asked[-1]
    assert told["links"]["device1 up"]["loss"] == 0.1
    assert told["links"]["device1 up"]["latency_s"] == pytest.approx(0.5, rel=1e-3)
    assert told["links"].keys() == {"device1 up", "device1 down"}
    up_link, down_link = (Link(**link) for link in told["remember"]["device1"])
    assert (up_link, down_link) == (Link(latency_s=0.5, loss=0.1), Link(latency_s=0.25))


def test_a_member_without_a_link_is_refused(said) -> None:
    engine = Remembering(answers=({"links": {}},))
    found = up(engine, said)
    with pytest.raises(UserError, match="choose device1, device2"):
        containers.change_link(engine, found, "router", lambda up_link, down_link: (up_link, down_link))


@pytest.mark.parametrize(("fault", "error"), [("user", UserError), ("resource", ResourceError)])
def test_what_the_agent_refuses_is_told_as_whose_fault_it_is(fault, error, said) -> None:
    engine = Remembering(answers=({"error": "so it is", "fault": fault},))
    with pytest.raises(error, match="so it is"):
        containers.ask(engine, up(engine, said), {"do": "state", "pids": {}})


def test_an_image_of_another_version_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert containers_agent.main(['{"do": "dance"}']) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "of another version" in answer["error"]
    assert answer["fault"] == "resource"


def test_without_docker_py_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(UserError, match=r"pip install 'tpiedge\[docker\]'"):
        ContainerEngine.connect()


@pytest.mark.parametrize("path", ["/nowhere/docker.sock", "", "/" + 200 * "x"])
def test_without_a_socket_there_is_no_engine(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with pytest.raises(UserError, match=r"no docker engine listens at .*: start it"):
        ContainerEngine.connect()


def test_without_an_engine_one_is_told_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(UserError, match=r"no docker engine answers .*: start it") as caught:
        ContainerEngine.connect()
    assert "\n" not in str(caught.value)


class _Broken(BaseHTTPRequestHandler):
    """An engine that says its version and fails at everything else."""

    def do_GET(self) -> None:
        answer = b'{"ApiVersion": "1.45"}' if self.path.endswith("/version") else b'{"message": "broken"}'
        self.send_response(200 if self.path.endswith("/version") else 500)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments: object) -> None:
        pass


@contextmanager
def failing_engine() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Broken) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def hanging_engine() -> Iterator[int]:
    """It takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("broken", [failing_engine, hanging_engine])
def test_who_needs_no_engine_is_not_stopped_by_a_broken_one(broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers_backend, "_LISTING_S", 0.2)
    with broken() as port:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{port}")
        require_free("home", NamespaceTestbeds())
        assert not in_containers("home")


def test_a_broken_engine_is_told_of_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with failing_engine() as port:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{port}")
        with (
            ContainerEngine.connect() as engine,
            pytest.raises(ResourceError, match="cannot list containers: broken"),
        ):
            known_names(engine)
