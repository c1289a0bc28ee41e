"""The real command in real processes."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.process.command import Ended, Started, limited, run_command, start_command, text_of_one_node
from tests.process.models import build_text_model
from tpiedge.cli.main import main
from tpiedge.launch.slot import ForkServer
from tpiedge.lifeline import child_environment

if TYPE_CHECKING:
    from tests.process.serving.serving import Serving

PROMPT, TOKENS = "Once upon a time there was a little fox", 16
Exact = Callable[["Serving"], None]


@pytest.fixture(scope="session")
def expected(_session_cache: None) -> str:
    """The text that one node gives, and every cluster must."""
    return text_of_one_node(PROMPT, TOKENS)


@pytest.fixture
def exact(expected: str) -> Exact:
    """Fails unless the cluster answers as one node does."""

    def check(cluster: "Serving") -> None:
        assert cluster.ask(PROMPT, TOKENS) == expected, cluster.logs()

    return check


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with tokenizer and chat template, and room for long answers."""
    return build_text_model(tmp_path_factory.mktemp("text") / "babbler")


@pytest.fixture
def tpiedge() -> Callable[..., Ended]:
    return run_command


@pytest.fixture
def here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Runs `tpiedge` in this process, which is quicker. What it waits for is killed at its deadline."""

    def run(*words: object, stdin: str = "", **environment: str) -> Ended:
        capfd.readouterr()
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["tpiedge", *map(str, words)])
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            patch.setattr("signal.signal", lambda *_: None)  # the handlers are the test runner's
            with limited(), pytest.raises(SystemExit) as ended:
                main()
        return Ended(int(ended.value.code or 0), *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def _fork_server() -> Iterator[tuple[ForkServer, dict[str, str]]]:
    server = ForkServer(1)
    yield server, child_environment()
    server.stop(0.0)


@pytest.fixture
def one_fork_server(_fork_server: tuple[ForkServer, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks the nodes of runs in this process from one server where it serves: to import torch takes 1.3 s."""
    shared, environment = _fork_server

    def server(threads: int) -> ForkServer:
        serves = (threads, child_environment()) == (1, environment) and shared.exit_cause() is None
        return shared if serves else ForkServer(threads)

    monkeypatch.setattr(shared, "stop", lambda *_: None)  # it is for the next run
    monkeypatch.setattr("tpiedge.local.cluster.ForkServer", server)


@pytest.fixture
def generate(here: Callable[..., Ended], one_fork_server: None) -> Callable[..., dict]:
    """`tpiedge run --json` in this process, with real nodes: its one object. Fails unless it is the only thing on
    standard output."""

    def generate(*arguments: object) -> dict:
        ended = here("run", *arguments, "--threads", 1, "--json")
        assert ended.status == 0, ended.err
        (record,) = map(json.loads, ended.out.splitlines())
        assert isinstance(record, dict)
        return record

    return generate


@pytest.fixture
def start():
    started: list[Started] = []

    def begin(*arguments: object) -> Started:
        started.append(start_command(*arguments))
        return started[-1]

    yield begin
    for process in started:
        process.kill_all()
