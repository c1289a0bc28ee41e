"""Whatever dies, and however: the rest ends too, quickly, and says why in one line."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.process.command import gone, wait_for

# A loss is noticed within 1.8 s (heartbeats of 0.3 s, timeout of 1.5 s); the rest is for the message and the end.
NOTICED_S = 2.5
CLEAN_S = 2.0
#: Where it is no promise: generous.
GONE_S = 60.0


@pytest.fixture
def answering(start, text_model):
    """A cluster in the middle of an answer that will take minutes: the command, and its nodes by rank."""

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


@pytest.fixture
def starting(start, text_model):
    """Begins a cluster of two nodes: the command, whose nodes may not be there yet."""

    def begin():
        return start(
            "run", "--model", text_model, "--nodes", 2, "--threads", 1, "--raw", "--prompt", "ba", "--max-tokens", 9
        )  # fmt: skip

    return begin


def one_line(ended):
    """The line that says what happened; the only one beside progress. (click ends the line of the ^C first.)"""
    lines = [
        line for line in ended.err.splitlines() if line and not line.startswith(("packing ", "loading "))
    ]
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("tpiedge: ")
    return lines[0]


@pytest.mark.alone
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name
)
def test_an_interrupted_answer_leaves_nothing(patience, answering, number):
    command, ranks = answering(2)
    command.process.send_signal(number)
    started = time.monotonic()
    ended = command.finish()
    assert time.monotonic() - started < CLEAN_S * patience
    assert ended.status == 130
    assert one_line(ended) == "tpiedge: interrupted"
    assert all(map(gone, ranks))


def test_ctrl_c_in_a_terminal_reaches_the_whole_group(answering):
    command, ranks = answering(2)
    os.killpg(command.process.pid, signal.SIGINT)
    ended = command.finish()
    assert ended.status == 130
    assert one_line(ended) == "tpiedge: interrupted"
    assert all(map(gone, ranks))


def test_an_impatient_second_ctrl_c_leaves_nothing_either(answering):
    command, ranks = answering(2)
    command.process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    command.process.send_signal(signal.SIGINT)
    assert command.finish().status == 130
    wait_for(lambda: all(map(gone, ranks)), GONE_S)


def test_an_interrupt_while_the_nodes_start_leaves_nothing(starting):
    command = starting()
    ranks = command.wait_for_children(2)
    command.process.send_signal(signal.SIGINT)
    ended = command.finish()
    assert ended.status == 130
    assert one_line(ended) == "tpiedge: interrupted"
    # A node that is importing torch notices the end of its lifeline when it is done with that.
    wait_for(lambda: all(map(gone, ranks)), GONE_S)


@pytest.mark.fault("P20", "they end; no port or lock stays")
def test_nodes_do_not_outlive_a_killed_parent(answering):
    command, ranks = answering(3)
    command.process.kill()
    wait_for(lambda: all(map(gone, ranks)), GONE_S)


@pytest.mark.fault("P20", "they end, a frozen one when it moves")
def test_nodes_do_not_outlive_a_parent_killed_while_one_of_them_is_frozen(answering):
    command, ranks = answering(2)
    ranks[1].suspend()
    command.process.kill()
    wait_for(lambda: gone(ranks[0]), GONE_S)
    wait_for(lambda: gone(ranks[1]), GONE_S)


def test_nodes_do_not_outlive_a_parent_killed_while_they_start(starting):
    command = starting()
    ranks = command.wait_for_children(2)
    command.process.kill()
    wait_for(lambda: all(map(gone, ranks)), GONE_S)


@pytest.mark.alone
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("nodes", "harm", "cause"),
    [(3, psutil.Process.kill, "SIGKILL"), (2, psutil.Process.suspend, "silent for")],
    ids=["killed", "frozen"],
)
def test_a_lost_node_is_named(patience, answering, nodes, harm, cause, rank):
    command, ranks = answering(nodes)
    harm(ranks[rank])
    started = time.monotonic()
    ended = command.finish()
    assert time.monotonic() - started < NOTICED_S * patience
    assert ended.status == 3
    line = one_line(ended)
    assert f"node {rank} was lost" in line
    assert cause in line
    assert all(map(gone, ranks))


@pytest.mark.thin
def test_a_node_killed_while_it_starts_is_named(starting):
    command = starting()
    ranks = command.wait_for_children(2)
    ranks[1].kill()
    ended = command.finish()
    assert ended.status == 3
    line = one_line(ended)
    assert "node 1 was lost" in line
    assert "SIGKILL" in line
    assert all(map(gone, ranks))


@pytest.mark.alone  # loading that takes seconds beside other work is told on standard error
def test_a_reader_that_goes_away_ends_the_answer(answering):
    """As `tpiedge run ... | head` does."""
    command, ranks = answering(2)
    command.process.stdout.close()
    assert command.process.wait(GONE_S) == 1
    assert command.process.stderr.read() == b""
    assert all(map(gone, ranks))


@pytest.fixture
def packing(start, tmp_path):
    """`tpiedge pack` in the middle of some hundred megabytes: the command and its child."""
    out = tmp_path / "pack"
    command = start(
        "pack", "--random", "tinyllama", "--distinct-layers", 1, "--precision", "f32", "--out", out
    )
    wait_for(lambda: any(path.stat().st_size for path in tmp_path.glob("pack.partial-*/blobs/*")), GONE_S)
    (child,) = command.children()
    return command, child, tmp_path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_interrupted_packing_leaves_nothing(packing, number):
    command, child, folder = packing
    if number is signal.SIGINT:
        os.killpg(command.process.pid, number)  # as a terminal does: the child gets it too
    else:
        command.process.send_signal(number)
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


def test_a_killed_packing_child_leaves_nothing(packing):
    command, child, folder = packing
    child.kill()
    ended = command.finish()
    assert ended.status == 4
    assert "packing was killed" in one_line(ended)
    assert list(folder.iterdir()) == []


LOST = """
import signal
import sys
import weakref

from tpiedge.cli.entry import main

class Module: ...

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            module = Module()
            callback = weakref.ref(module, lambda _: signal.raise_signal(signal.{number}))
            del module
        return None

sys.meta_path.insert(0, Finder())
sys.argv = ["tpiedge", "bench", "kernels", "--shapes", "64x128"]
main()
"""


@pytest.mark.parametrize(
    ("name", "number"), [("tpiedge.cli.main", "SIGINT"), ("torch", "SIGINT"), ("torch", "SIGTERM")]
)
def test_an_interrupt_in_a_callback_of_an_import_is_not_lost(name, number):
    """The interpreter reports what such a callback raises, and goes on."""
    script = LOST.format(name=name, number=number)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=110, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr.lstrip()) == (130, "", "tpiedge: interrupted\n")
