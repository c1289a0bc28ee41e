"""The real command in real processes."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.process.command import Ended, Started, run_command, start_command, text_of_one_node
from tests.process.models import build_text_model
from tpiedge.cli.main import main
from tpiedge.launch.slot import ForkServer

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
    """Runs `tpiedge` in this process, which is quicker."""

    def run(*words: object, stdin: str = "", **environment: str) -> Ended:
        capfd.readouterr()
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["tpiedge", *map(str, words)])
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            patch.setattr("signal.signal", lambda *_: None)  # the handlers are the test runner's
            with pytest.raises(SystemExit) as ended:
                main()
        return Ended(int(ended.value.code or 0), *capfd.readouterr())

    return run


class _Shared(ForkServer):
    def stop(self, *_: object) -> None:
        """Leaves it to the next run."""


@pytest.fixture(scope="session")
def _fork_server() -> Iterator[ForkServer]:
    server = _Shared(1)
    yield server
    ForkServer.stop(server, 0.0)


@pytest.fixture
def one_fork_server(_fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks the nodes of all runs in this process from one server: to import torch takes 1.3 s."""
    monkeypatch.setattr("tpiedge.local.cluster.ForkServer", lambda _threads: _fork_server)


@pytest.fixture
def generate(here: Callable[..., Ended], one_fork_server: None) -> Callable[..., dict]:
    """`tpiedge run --json` in this process, with real nodes: its one object. Fails unless it is the only thing on
    standard output."""

    def generate(*arguments: object) -> dict:
        ended = here("run", *arguments, "--threads", 1, "--json")
        assert ended.status == 0, ended.err
        lines = ended.out.splitlines()
        assert len(lines) == 1, ended.out
        record = json.loads(lines[0])
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
