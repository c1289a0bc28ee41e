"""Far more nodes than this computer has cores or memory for are warned of: in one line, before anything starts."""

import pytest
from click.testing import CliRunner

from tpiedge.cli.run import run
from tpiedge.errors import UserError
from tpiedge.lab.verbs.bench_decode import decode
from tpiedge.lab.verbs.bench_memory import memory
from tpiedge.lab.verbs.eval import perplexity
from tpiedge.local import launch
from tpiedge.local.launch import crowding
from tpiedge.planner.needs import bytes_beside_weights
from tpiedge.units import GIB

FREE = 64 * GIB
TWENTY = "20 nodes take turns on 2 cores here: expect far slower answers than from 2 side by side"


@pytest.mark.parametrize(
    ("nodes", "cores", "said"),
    [
        (1, 1, None),
        (2, 1, None),
        (2, 2, None),
        (3, 2, None),  # the demo's
        (4, 2, None),
        (5, 2, "5 nodes take turns on 2 cores here: expect far slower answers than from 2 side by side"),
        (20, 2, TWENTY),
        (20, 10, None),
        (3, 1, "3 nodes take turns on one core here: expect far slower answers than from one"),
    ],
)
def test_nodes_may_be_twice_the_cores(nodes: int, cores: int, said: str | None) -> None:
    assert crowding(nodes, cores, FREE) == said


def test_processes_that_do_not_fit_without_any_weights_are_said() -> None:
    needed = bytes_beside_weights(4)
    assert crowding(4, 4, needed) is None
    assert crowding(4, 4, needed - 1) == (
        "4 nodes take 1.2 GB of memory beside the weights, and 1.2 GB are free here: "
        "expect a refusal, and use fewer nodes"
    )
    assert crowding(1, 4, 0) is None, "fewer are not to be had"
    assert (crowding(20, 2, 0) or "").startswith("20 nodes take turns"), "one line says enough"


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "default_threads", lambda: 2)
    monkeypatch.setattr(launch, "available_memory_bytes", lambda: FREE)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (run, "--nodes 20 --prompt a --json"),
        (run, "--nodes 20"),
        (decode, "--settings 1x2,20x1,6x1 --json"),
        (memory, "--nodes 20 --json"),
        (perplexity, "--nodes 20 --json"),
    ],
)
def test_a_command_says_one_line_before_it_looks_at_the_model(command, arguments) -> None:
    ended = CliRunner().invoke(command, ["--model", "/nowhere", *arguments.split()])
    assert isinstance(ended.exception, UserError), "the missing model is found later"
    assert (ended.stdout, ended.stderr) == ("", f"tpiedge: {TWENTY}\n")


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("arguments", ["--nodes 4", "--nodes 2 --threads 2", "--nodes 100", "--nodes 0"])
def test_few_nodes_and_refused_ones_are_not_warned_of(arguments: str) -> None:
    ended = CliRunner().invoke(run, ["--model", "/nowhere", "--prompt", "a", *arguments.split()])
    assert isinstance(ended.exception, UserError)
    assert ended.stderr == ""
