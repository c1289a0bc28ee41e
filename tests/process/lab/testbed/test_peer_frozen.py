"""A device that freezes, or whose link is cut, in the middle of an answer: the command ends soon, names its node in one
line and leaves nothing."""

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.deadlines import Meanwhile
from tests.process.command import Started, gone
from tests.process.lab.testbed.beds import left_of, why_no_testbed, written
from tpiedge.lab.testbed.description import Link
from tpiedge.lab.testbed.running import attach
from tpiedge.lab.testbed.testbed import members

REASON = why_no_testbed()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.timeout(120)]

# A loss is seen within 1.8 s; what is left then is ended, and the testbed taken down.
ENDED_S = 10.0
NODES = 4
FOUR = '[defaults]\nup_latency = "1 ms"\n[[router]]\nname = "router"\n' + "".join(
    f'[[device]]\nname = "device{rank}"\nuplink = "router"\n' for rank in range(NODES)
)

PendingAnswer = Callable[[str], tuple[Started, list[psutil.Process]]]


@pytest.fixture
def answering(bed: str, tmp_path: Path, start: Callable[..., Started]) -> PendingAnswer:
    """A command in the middle of an answer by this collective, and its nodes; the node of rank 2 is on "device2"."""

    def begin(way: str) -> tuple[Started, list[psutil.Process]]:
        path = written(tmp_path, bed, FOUR)
        command = start(
            "run", "--testbed", path, "--collective", way, "--model", "demo", "--raw", "--prompt", "Once upon a time",
            "--max-tokens", 400, "--ignore-eos", "--temperature", 0, "--threads", 1,
        )  # fmt: skip
        command.wait_for_output()
        own = {child.pid: child for child in command.children()}
        # The command itself is on the first device, where its master listens.
        places = [members(bed, f"device{rank}") - {command.process.pid} for rank in range(NODES)]
        assert [len(place) for place in places] == [1] * NODES
        return command, [own[pid] for place in places for pid in place]

    return begin


def assert_names(
    command: Started, rank: int, since: Meanwhile, bed: str, nodes: list[psutil.Process]
) -> None:
    """Fails unless the command ended soon after `since` by the loss of `rank`, with all its processes."""
    ended = command.finish(4 * ENDED_S)
    took_s, deadline_factor = since.spent_s, since.deadline_factor()
    assert ended.status == 3, ended.err
    (line,) = [line for line in ended.err.splitlines() if line.startswith("tpiedge: ")]
    assert f"node {rank} was lost" in line
    assert ended.err.rstrip().endswith(line)
    assert took_s < ENDED_S * deadline_factor, line
    assert all(map(gone, nodes))
    assert left_of(bed) == []


@pytest.mark.parametrize(("way", "rank"), [("two-shot", 2)])
def test_a_frozen_node_is_named(bed: str, answering: PendingAnswer, way: str, rank: int) -> None:
    command, nodes = answering(way)
    since = Meanwhile()
    nodes[rank].send_signal(signal.SIGSTOP)
    assert_names(command, rank, since, bed, nodes)


@pytest.mark.parametrize("way", ["mesh"])
@pytest.mark.fault("P8", "`tpiedge run` names the node and ends")
def test_a_node_whose_link_is_cut_is_named(bed: str, answering: PendingAnswer, way: str) -> None:
    command, nodes = answering(way)
    since = Meanwhile()
    cut = Link(loss=1.0)
    attach(bed).set_all({"device2": (cut, cut)})
    assert_names(command, 2, since, bed, nodes)
