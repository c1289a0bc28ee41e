"""A cluster of real processes on loopback: `tpiedge master`, and workers with machines of their own as far as folders
make one. What a test does not say costs no time: speeds are given, not measured."""

import contextlib
import os
import random
import re
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import httpx
import openai
import psutil
from openai.types import Completion

from tests.process.command import COMMAND, gone, wait_for
from tests.process.serving.machines import END_S, SPEED, THREADS, UNMEASURED, Process, Worker, measured
from tests.process.serving.slowness import crawling
from tests.process.serving.streaming import Streaming
from tpiedge.host.addresses import PURPOSES, Address
from tpiedge.host.private_file import read_private
from tpiedge.joining.identity import load_or_create_keys
from tpiedge.joining.tokens import JoinToken, TokenStore

HOST = "127.0.0.1"
#: Generous: the machine may be doing ten other things.
START_S = 90.0
# An answer costs the master and the tests some milliseconds of the processors that the machines start on.
_POLL_S = 0.05
#: What no answer of the master takes, be the machine ever so busy.
_ANSWER_S = 90.0
_PORTS = len(PURPOSES) + 1  # and HTTP
# Below the ports that the kernel gives to outgoing connections.
_FIRST_PORT, _LAST_PORT = 20_000, 30_000
_SHARES = 10


def _own_ports() -> range:
    """Other workers of pytest-xdist have others: two that look for free ports at a time do not find the same."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _SHARES
    each = (_LAST_PORT - _FIRST_PORT) // _SHARES
    return range(_FIRST_PORT + number * each, _FIRST_PORT + (number + 1) * each - _PORTS)


def free_ports() -> int:
    """The first of as many adjacent ports as a master needs."""
    while True:
        first = random.choice(_own_ports())
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + _PORTS):
                stack.enter_context(socket.socket()).bind((HOST, port))
            return first


def unfinished(stream: Iterable[Completion]) -> Iterator[str]:
    for chunk in stream:
        assert chunk.choices[0].finish_reason is None
        yield chunk.choices[0].text


def node_of(status: dict, name: str) -> dict:
    """A worker's line of the status by the name the test gave it, the master's own by "master"."""
    return next(node for node in status["nodes"] if name in (node["host"], node["name"]))


def rank_of(status: dict, host: str) -> int | None:
    """Returns None for a machine without a part, or one that is not there."""
    return next((node["rank"] for node in status["nodes"] if node["host"] == host), None)


def words_of_loss(rank: int | str, cause: str, during: str = "the work") -> str:
    """A pattern of the error. `rank` and `cause` are patterns, too."""
    return rf"node {rank}(?: \([^)]*\))? was lost during {during}: {cause}"


class Serving:
    """One master and its workers, all below `folder`. `close` ends everything and checks that it is gone."""

    def __init__(
        self,
        folder: Path,
        *options: object,
        cache: Path | None = None,
        model: str = "demo",
        bytes_per_s: float = UNMEASURED,
        program: tuple[object, ...] = (COMMAND,),
    ) -> None:
        """`program`: what the master is, instead of `tpiedge`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.model = model
        self.options = options
        self.program = program
        self.state = folder / "master-state"
        self.cache = cache
        self.descriptors: tuple[int, int] | None = None
        self.port = free_ports()
        self.http_port = self.port + len(PURPOSES)
        self.address = Address(HOST, self.port)
        self.workers: dict[str, Worker] = {}
        self._master: Process | None = None
        self._everything: list[Process] = []
        self._http = httpx.Client(trust_env=False, timeout=_ANSWER_S)
        measured(self.state / "master", bytes_per_s)

    def start_master(self, *, wait: bool = True) -> Process:
        """Returns once it answers, or at once."""
        cache = ["--cache", self.cache] if self.cache else []
        listen = ["--listen", self.address, "--http", f"{HOST}:{self.http_port}"]
        self._master = Process(
            self.folder / "master.log", "master", "--model", self.model, *listen,
            "--state", self.state, *cache, "--threads", THREADS, *self.options,
            program=self.program, descriptors=self.descriptors,
        )  # fmt: skip
        self._everything.append(self._master)
        if wait:
            wait_for(self.answers, START_S)
        return self._master

    def start_worker(
        self,
        name: str,
        *options: object,
        token: bool = True,
        bytes_per_s: float = SPEED,
        program: tuple[object, ...] = (COMMAND,),
    ) -> Worker:
        """A new machine with the `options`, or one that was here before. `program`: its agent, instead of `tpiedge`."""
        worker = self.workers.get(name)
        if worker is None:
            worker = Worker(self.folder, name, self.address, options, bytes_per_s, program)
            self.workers[name] = worker
        worker.start(self.token() if token else None)
        self._everything.append(worker.process)
        return worker

    def token(self, expires_s: float = 3600.0) -> str:
        folder = self.state / "master"
        _, secret = TokenStore(folder).create(expires_s)
        return JoinToken(load_or_create_keys(folder).public, secret, self.address).text

    @property
    def master(self) -> Process:
        assert self._master is not None, "the master was never started"
        return self._master

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    def answers(self) -> bool:
        """Whether the master listens. Fails if it has ended."""
        assert self.master.popen.poll() is None, self.master.log
        with contextlib.suppress(httpx.TransportError):
            return self._admin() is not None and self._http.get(f"{self.url}/health").status_code == 200
        return False

    def _admin(self) -> dict | None:
        return read_private(self.state / "master" / "admin.json")

    def status(self) -> dict:
        return self.administer("GET", "nodes").raise_for_status().json()

    def picture(self) -> dict:
        return self.administer("GET", "cluster").raise_for_status().json()

    @property
    def secret(self) -> str:
        """The administrator's; empty where no master runs."""
        return (self._admin() or {}).get("secret", "")

    def administer(
        self, method: str, path: str, headers: dict[str, str] | None = None, json: object = None
    ) -> httpx.Response:
        """Asks as the administrator, below /admin."""
        known = {"Authorization": f"Bearer {self.secret}"} | (headers or {})
        try:
            return self._http.request(method, f"{self.url}/admin/{path}", headers=known, json=json)
        except httpx.ConnectError:
            status = self.master.popen.poll()
            assert status is None, f"the master has ended with status {status}\n{self.logs()}"
            raise

    def ready(self) -> httpx.Response:
        return self._http.get(f"{self.url}/ready")

    def node(self, name: str) -> dict:
        return node_of(self.status(), name)

    def wait_until(
        self,
        condition: Callable[[dict], bool],
        limit_s: float = START_S,
        look: Callable[[], dict] | None = None,
    ) -> dict:
        """The first status that `condition` holds of, or the first of what `look` returns."""
        deadline = time.monotonic() + limit_s
        while not condition(status := (look or self.status)()):
            assert time.monotonic() < deadline, f"not within {limit_s} s: {status}\n{self.logs()}"
            time.sleep(_POLL_S)
        return status

    def wait_ready(self, nodes: int, limit_s: float = START_S) -> dict:
        """Returns the first status with so many serving nodes, the master's own included. Ends the back-off of failed
        workers meanwhile: most tests are not about its length."""

        def serve(status: dict) -> bool:
            serving = sum(node["rank"] is not None for node in status["nodes"])
            if status["ready"] and serving < nodes:
                self.end_waits(status)
            return status["ready"] and serving == nodes

        return self.wait_until(serve, limit_s)

    def end_waits(self, status: dict) -> None:
        """Ends the back-off of all workers that are left out, as an administrator."""
        for node in status["nodes"]:
            if node["state"] == "left out":
                self._http.post(
                    f"{self.url}/admin/nodes/clear",
                    headers={"Authorization": f"Bearer {self.secret}"},
                    json={"name": node["name"]},
                )

    def losses(self) -> int:
        """Returns how often serving ended so far, except for a next plan. A busy machine has other reasons, too."""
        return self.master.log.count("stopped serving: ")

    def silences(self, logged: int) -> int:
        """Returns how often serving ended by silence since the log had `logged` characters, because others kept a
        process from its heartbeats. Fails at another reason."""
        losses = re.findall("stopped serving: (.*)", self.master.log[logged:])
        assert all("silent for " in loss for loss in losses), losses
        return len(losses)

    def rank_zero(self) -> psutil.Process:
        return psutil.Process(self.node("master")["pid"])

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')}" for path in self.folder.glob("*.log")
        )

    @contextlib.contextmanager
    def client(self) -> Iterator[openai.OpenAI]:
        with openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=_ANSWER_S,
            http_client=httpx.Client(trust_env=False),
        ) as client:  # fmt: skip
            yield client

    def ask(self, prompt: str, max_tokens: int) -> str:
        with self.client() as client:
            answer = client.completions.create(
                model=self.model, prompt=prompt, max_tokens=max_tokens, temperature=0
            )
        return answer.choices[0].text

    @contextlib.contextmanager
    def streaming(self, prompt: str, max_tokens: int) -> Iterator[Streaming]:
        with self.client() as client:
            stream = Streaming(client, self.model, prompt, max_tokens)
            try:
                yield stream
            finally:
                stream.join()

    def whole(self, prompt: str, max_tokens: int, limit_s: float = 90.0) -> str:
        """A long answer, read to its end. Fails where it breaks off."""
        with self.streaming(prompt, max_tokens) as stream:
            stream.join(limit_s)
        assert stream.error is None, stream.error
        return stream.text

    @contextlib.contextmanager
    def crawling(self) -> Iterator[None]:
        """Slows all nodes of this epoch down, so that answers last as long as a test needs."""
        serving = [node["host"] for node in self.status()["nodes"] if node["rank"] is not None]
        workers = [self.workers[host].node for host in serving if host in self.workers]
        with crawling([self.rank_zero(), *workers]):
            yield

    def close(self) -> None:
        family = [child for process in self._everything for child in process.children()]
        self._http.close()
        try:
            for worker in self.workers.values():
                worker.process.end()
            if self._master is not None:
                self._master.end()
            wait_for(lambda: all(map(gone, family)), END_S)
            self._check_ports()
        finally:
            for process in self._everything:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.popen.wait()
            for child in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()

    def _check_ports(self) -> None:
        for port in range(self.port, self.port + _PORTS):
            with socket.socket() as probe:
                assert probe.connect_ex((HOST, port)) != 0, f"somebody still listens at port {port}"
