"""The demo of several laptops: built, started with compose, asked, hurt and stopped.

Minutes long, and only where containers can run: elsewhere each test says why it was skipped.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import openai
import pytest

from tests.deploy.engine import ROOT, Engine
from tests.process.command import run_command, wait_for

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

COMPOSE_FILE = ROOT / "deploy" / "compose" / "compose.yaml"
KEY = secrets.token_hex(8)
WORKERS = ("macbook-air", "dell-1", "dell-2")
PROMPT = "Once upon a time"
TOKENS = 16
READY = "ready: 4 nodes"
READY_S = 180.0
LOST_S = 10.0
STOP_S = 30.0


@dataclass(frozen=True)
class Laptops:
    """The compose project `name`, served at `port` of the loopback address."""

    engine: Engine
    name: str
    port: int
    compose: Callable[..., str]

    def state(self, service: str) -> dict:
        with self.engine.client() as client:
            return client.api.inspect_container(self.container(service))

    def log(self, service: str) -> list[str]:
        with self.engine.client() as client:
            text = client.containers.get(self.container(service)).logs()
        return text.decode(errors="replace").splitlines()

    def run_in(self, service: str, *command: str) -> tuple[int, str]:
        with self.engine.client() as client:
            status, output = client.containers.get(self.container(service)).exec_run(list(command))
        return status, output.decode(errors="replace")

    def container(self, service: str) -> str:
        labels = {
            "label": [f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}"]
        }
        with self.engine.client() as client:
            return client.api.containers(all=True, filters=labels)[0]["Id"]

    @property
    def ready(self) -> bool:
        return next((line.startswith(READY) for line in reversed(self.log("master"))), False)

    def answer(self) -> str:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=KEY, max_retries=0) as client:
            done = client.completions.create(
                model=client.models.list().data[0].id, prompt=PROMPT, max_tokens=TOKENS, temperature=0
            )
        return done.choices[0].text


@pytest.fixture(scope="session")
def composes() -> dict[str, list[str]]:
    """The commands that take a compose file, by name. Asked for before the image: without one nothing is built."""
    found = {}
    if shutil.which("docker") and not _status(["docker", "compose", "version"]):
        found["docker compose"] = ["docker", "compose"]
    if shutil.which("docker-compose") and not _status(["docker-compose", "version"]):
        found["docker-compose"] = ["docker-compose"]
    if not found:
        pytest.skip("software: neither 'docker compose' nor docker-compose is installed")
    return found


def _status(command: list[str]) -> int:
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode


@pytest.fixture(scope="module")
def laptops(composes, engine, image) -> Iterator[Laptops]:
    name = f"tpiedge-test-{secrets.token_hex(3)}"
    port = _free_port()
    environment = {
        **os.environ,
        "DOCKER_HOST": engine.url,
        "IMAGE": image,
        "API_KEY": KEY,
        "PORT": str(port),
        "MODEL": "demo",
    }
    command = [*next(iter(composes.values())), "-p", name, "-f", str(COMPOSE_FILE)]

    def compose(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    running = Laptops(engine, name, port, compose)
    try:
        compose("up", "-d", "--no-build")
        wait_for(lambda: running.ready, READY_S)
        yield running
    finally:
        compose("down", "--volumes", "--timeout", "5")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_every_compose_program_accepts_the_file(composes):
    for name, command in composes.items():
        done = subprocess.run(
            [*command, "-f", str(COMPOSE_FILE), "config", "--quiet"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), name


def test_cluster_answer_equals_the_answer_of_one_computer(laptops):
    alone = run_command(
        "run", "--model", "demo", "--nodes", 1, "--raw", "--prompt", PROMPT, "--max-tokens", TOKENS,
        "--temperature", 0, "--json",
    )  # fmt: skip
    assert alone.status == 0, alone.err
    assert laptops.answer() == json.loads(alone.out)["text"]


def test_api_listens_only_locally_and_needs_the_key(laptops):
    published = laptops.state("master")["NetworkSettings"]["Ports"]
    assert {port: where for port, where in published.items() if where} == {
        "8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(laptops.port)}]
    }
    with (
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{laptops.port}/v1", api_key="guessed", max_retries=0
        ) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


@pytest.mark.parametrize("service", ["master", "dell-1"])
def test_the_image_has_no_root_and_no_compiler(laptops, service):
    assert laptops.run_in(service, "id", "-u") == (0, "10001\n")
    status, _ = laptops.run_in(service, "sh", "-c", "command -v cc c++ g++ gcc pip")
    assert status != 0


def test_killed_worker_rejoins_after_restart(laptops):
    before = laptops.answer()
    with laptops.engine.client() as client:
        worker = client.containers.get(laptops.container("dell-1"))
        worker.kill()
        wait_for(lambda: "1 more worker needed" in laptops.log("master")[-1], LOST_S)
        worker.start()
    wait_for(lambda: laptops.ready, READY_S)
    assert laptops.answer() == before


def test_containers_exit_with_status_0_when_stopped(laptops):
    """The last one: nothing runs afterwards."""
    laptops.compose("stop", "--timeout", str(int(STOP_S)))
    statuses = {service: laptops.state(service)["State"]["ExitCode"] for service in ("master", *WORKERS)}
    assert statuses == dict.fromkeys(statuses, 0)
