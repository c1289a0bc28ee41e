"""`--trace FILE` and `tpiedge trace FILE`: what a streaming cluster did when, and the same tokens with and without."""

import json
import signal
import struct
from statistics import median

import pytest

from tests.process.command import run_command
from tpiedge.cli.main import cli
from tpiedge.lab.traces import read_trace, total
from tpiedge.tracing.tracer import LANES, clip, union

TOKENS = 12
RUN = (
    "run", "--model", "demo", "--nodes", 2, "--shares", "2,1", "--threads", 1, "--pin", "none",
    "--raw", "--prompt", "Once upon a time", "--max-tokens", TOKENS, "--ignore-eos", "--json",
)  # fmt: skip
LAYERS = 6


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "t.json"
    ended = run_command(*RUN, "--trace", path)
    assert ended.status == 0, ended.err
    assert f"events in {path}" in ended.err.splitlines()[-1]
    assert list(path.parent.iterdir()) == [path]
    return json.loads(ended.out), path


@pytest.fixture
def summary(capsys):
    """Returns what `tpiedge trace FILE --json` prints, run in this process."""

    def found(path, *arguments):
        cli.main(["trace", str(path), "--json", *map(str, arguments)], standalone_mode=False)
        return json.loads(capsys.readouterr().out)

    return found


def drawn(path, png, *arguments):
    """Returns what it prints beside a picture, run in a process of its own: matplotlib keeps its fonts open."""
    ended = run_command("trace", path, "--json", "--png", png, *arguments)
    assert (ended.status, ended.err) == (0, "")
    return json.loads(ended.out)


def test_trace_has_every_block_of_every_step(traced):
    trace = read_trace(traced[1])
    assert list(trace.nodes) == [0, 1]
    assert sorted(trace.steps) == list(range(1, TOKENS + 1))
    for rank, events in trace.nodes.items():
        for lane, prefix in (("compute", ""), ("reduce", "reduce ")):
            found = sorted(
                (e.step, e.layer, e.name)
                for e in events
                if e.lane == lane and e.name.endswith(("attention", "ffn"))
            )
            expected = [
                (step, layer, prefix + kind)
                for step in range(1, TOKENS + 1)
                for layer in range(LAYERS)
                for kind in ("attention", "ffn")
            ]
            assert found == expected
        heads = {event.step for event in events if event.name == "head" and event.lane == "compute"}
        assert heads == (set(range(1, TOKENS + 1)) if rank == 0 else set())


def test_tracing_does_not_change_the_tokens(traced, here, one_fork_server):
    assert json.loads(here(*RUN).out)["token_ids"] == traced[0]["token_ids"]


def test_the_lanes_add_up_to_the_counters_of_the_run(traced):
    for node, events in zip(traced[0]["nodes"], read_trace(traced[1]).nodes.values(), strict=True):

        def spent_s(lane, name="", events=events):
            return total(union(event.span for event in events if event.lane == lane and name in event.name))

        assert spent_s("compute", "attention") == pytest.approx(node["attention_s"], rel=0.01)
        assert spent_s("compute", "ffn") == pytest.approx(node["ffn_s"], rel=0.01)
        assert spent_s("reduce") == pytest.approx(node["reduce_wait_s"], rel=0.01)
        assert spent_s("wait") == pytest.approx(node["weight_wait_s"], rel=0.01, abs=1e-6)
        assert sum(event.lane == "wait" for event in events) == node["stalls"]
        ended_s = max(
            event.end_s for event in events if event.lane == "compute"
        )  # the counters were asked then
        loads = clip((event.span for event in events if event.lane == "load"), 0.0, ended_s)
        assert 0 < total(union(loads)) <= node["load_s"] * 1.01 + 0.1


def test_trace_command_selects_steps(traced, summary):
    everything = summary(traced[1])
    token = summary(traced[1], "--steps", "2")
    tokens = summary(traced[1], "--steps", "2:")
    assert [found["steps"] for found in (everything, token, tokens)] == [
        list(range(1, TOKENS + 1)),
        [2],
        list(range(2, TOKENS + 1)),
    ]
    assert everything["from_s"] < token["from_s"] == tokens["from_s"] < token["to_s"] < tokens["to_s"]


@pytest.mark.thin
def test_trace_command_prints_a_readable_table(traced):
    ended = run_command("trace", traced[1])
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert f"{TOKENS} steps" in lines[0]
    assert lines[2].split() == ["node", *LANES, "read", "I/O", "hidden", "travel", "hidden"]
    assert [line.split()[0] for line in lines[4:]] == ["0", "1"]


def test_trace_picture_shows_three_typical_steps_by_default(traced, tmp_path):
    png = tmp_path / "timeline.png"
    found = drawn(traced[1], png)
    assert list(tmp_path.iterdir()) == [png]
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    assert 1000 < width < 4000
    assert 400 < height < 2000
    spent_s = {step: end - start for step, (start, end) in read_trace(traced[1]).steps.items()}
    first = found["drawn_steps"][0]
    assert found["drawn_steps"] == [first, first + 1, first + 2]
    assert first > 1  # the prompt
    usual_s = median(spent_s[step] for step in range(2, TOKENS + 1))

    def off_s(first):
        return max(abs(spent_s[step] - usual_s) for step in range(first, first + 3))

    assert off_s(first) == min(map(off_s, range(2, TOKENS - 1)))
    assert found["steps"] == list(range(1, TOKENS + 1))
    chosen = drawn(traced[1], png, "--steps", "3:4")
    assert chosen["steps"] == chosen["drawn_steps"] == [3, 4]


def endless(start, model, trace):
    command = start(
        "run", "--model", model, "--nodes", 2, "--threads", 1, "--raw", "--prompt", "ba be bi",
        "--max-tokens", 20_000, "--ignore-eos", "--trace", trace,
    )  # fmt: skip
    command.wait_for_output()
    return command


def test_interrupted_run_leaves_only_its_trace(start, text_model, tmp_path):
    command = endless(start, text_model, tmp_path / "t")
    command.process.send_signal(signal.SIGINT)
    ended = command.finish()
    assert ended.status == 130
    assert ended.err.splitlines()[-1] == "tpiedge: interrupted"
    assert list(read_trace(tmp_path / "t").nodes) == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_lost_node_is_named_and_leaves_no_partial_traces(start, text_model, tmp_path):
    command = endless(start, text_model, tmp_path / "t")
    command.children()[1].kill()
    ended = command.finish()
    assert ended.status == 3
    assert "node 1 was lost" in ended.err.splitlines()[-1]
    assert {path.name for path in tmp_path.iterdir()} <= {"t"}
