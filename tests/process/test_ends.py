import os
import signal

import psutil
import pytest

from tests.deadlines import Meanwhile
from tests.process.command import gone, wait_for

# A loss is noticed within 1.8 s (heartbeats of 0.3 s, timeout of 1.5 s); the rest is for the message and the end.
NOTICED_S = 2.5
CLEAN_S = 2.0
#: Where it is no promise: generous.
GONE_S = 60.0


@pytest.fixture
def answering(start, text_model):
    def begin(nodes):
        command = start(
            "run", "--model", text_model, "--nodes", nodes, "--threads", 1, "--raw", "--prompt", "ba be bi",
            "--max-tokens", 20_000, "--ignore-eos",
        )  # fmt: skip
        command.wait_for_output()
        ranks = command.children()
        assert len(ranks) == nodes
        return command, ranks

    return begin


def one_line(ended):
    lines = [
        line for line in ended.err.splitlines() if line and not line.startswith(("packing ", "loading "))
    ]
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("tpiedge: ")
    return lines[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_interrupted_run_leaves_no_processes(answering, number):
    command, ranks = answering(2)
    meanwhile = Meanwhile()
    command.process.send_signal(number)
    ended = command.finish()
    assert meanwhile.spent_s < CLEAN_S * meanwhile.deadline_factor()
    assert ended.status == 130
    assert one_line(ended) == "tpiedge: interrupted"
    assert all(map(gone, ranks))


@pytest.mark.fault("P20", "they end; no port or lock stays")
@pytest.mark.fault("P20", "they end, a frozen one, too")
def test_nodes_do_not_outlive_a_killed_parent(answering):
    command, ranks = answering(3)
    ranks[1].suspend()
    command.process.kill()
    wait_for(lambda: all(map(gone, ranks)), GONE_S)


@pytest.mark.parametrize(
    ("harm", "cause", "rank"),
    [(psutil.Process.kill, "SIGKILL", 1), (psutil.Process.suspend, "silent for", 0)],
    ids=["killed", "frozen"],
)
def test_a_lost_node_is_named(answering, harm, cause, rank):
    command, ranks = answering(2)
    meanwhile = Meanwhile()
    harm(ranks[rank])
    ended = command.finish()
    assert meanwhile.spent_s < NOTICED_S * meanwhile.deadline_factor()
    assert ended.status == 3
    line = one_line(ended)
    assert f"node {rank} was lost" in line
    assert cause in line
    assert all(map(gone, ranks))


def test_closed_stdout_ends_the_run(answering):
    command, ranks = answering(2)
    command.process.stdout.close()
    assert command.process.wait(GONE_S) == 1
    assert all(line.startswith((b"packing ", b"loading ")) for line in command.process.stderr)
    assert all(map(gone, ranks))


@pytest.fixture
def packing(start, tmp_path):
    out = tmp_path / "pack"
    command = start(
        "pack", "--random", "tinyllama", "--distinct-layers", 1, "--precision", "f32", "--out", out
    )
    wait_for(lambda: any(path.stat().st_size for path in tmp_path.glob("pack.partial-*/blobs/*")), GONE_S)
    (child,) = command.children()
    return command, child, tmp_path


def test_interrupted_packing_leaves_nothing(packing):
    command, child, folder = packing
    os.killpg(command.process.pid, signal.SIGINT)  # as a terminal does: the child gets it too
    ended = command.finish()
    assert ended.status == 130
    assert one_line(ended) == "tpiedge: interrupted"
    assert list(folder.iterdir()) == []
    assert gone(child)


@pytest.mark.fault("P20", "no process and no files are left")
def test_packing_whose_parent_is_killed_leaves_nothing(packing):
    command, child, folder = packing
    command.process.kill()
    wait_for(lambda: gone(child), GONE_S)
    assert list(folder.iterdir()) == []
