"""Streams of both servers: what they come to, and what a comparison that ends early keeps."""

import argparse
import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.peers import serve
from tools.peers.llama_server import llama_server_command
from tools.peers.serve import ServeRound, compare_serve, report_of_streams
from tpiedge.errors import PeerError, UserError
from tpiedge.lab.bench.serve_figures import RoundFigures, TimedAnswer


def figures(streams: int, step_s: float) -> RoundFigures:
    """Answers in step: a token of each stream every `step_s`."""
    token_s = tuple(1 + step_s * number for number in range(9))
    return RoundFigures.of([TimedAnswer(0.0, token_s, token_s[-1], 8)] * streams, streams)


def test_what_both_come_to() -> None:
    rounds = [
        ServeRound(figures(16, 0.5), figures(16, step_s), peer_prefill=50, own_prefill=100)
        for step_s in (0.25, 0.125, 0.25)
    ]
    found = report_of_streams(16, rounds)
    assert (found["streams"], found["rounds"]) == (16, 3)
    answering = found["answering_tokens_per_s"]
    assert answering["llama_server"] == {"median": 32, "min": 32, "max": 32}
    assert answering["tpiedge"] == {"median": 64, "min": 64, "max": 128}
    assert answering["times_that_of_llama_server"] == {"median": 2, "min": 2, "max": 4}
    assert (answering["required"], answering["met"]) == (1.8, True)
    own = found["answering_to_own_prefill"]
    assert (own["ratio"], own["required"], own["met"]) == (
        {"median": 0.64, "min": 0.64, "max": 1.28},
        0.70,
        False,
    )
    assert found["prefill_tokens_per_s"]["times_faster_than_llama_server"]["median"] == 2
    assert found["gap_s_p99"]["times_that_of_llama_server"]["median"] == 0.5
    assert found["first_s_p50"]["tpiedge"]["median"] == 1
    of_one = report_of_streams(1, rounds)
    assert (of_one["answering_tokens_per_s"]["required"], of_one["answering_to_own_prefill"]["met"]) == (
        None,
        None,
    )


def test_streams_that_never_answered_together_have_no_rate() -> None:
    alone = RoundFigures.of([TimedAnswer(0, (1, 2), 2, 8), TimedAnswer(2, (3, 4), 4, 8)], 2)
    found = report_of_streams(2, [ServeRound(alone, alone, 1, 1)])
    assert found["answering_tokens_per_s"]["tpiedge"] is None
    assert found["answering_to_own_prefill"]["ratio"] is None


def test_llama_server_has_as_much_context_for_each_stream() -> None:
    words = llama_server_command(Path("bin/llama-server"), Path("m.gguf"), 2, 16, 512, "-fa on")
    assert words[words.index("-np") + 1] == "16"
    assert words[words.index("-c") + 1] == "8192"
    assert words[-2:] == ["-fa", "on"]
    assert words[words.index("-t") + 1] == words[words.index("-tb") + 1] == "2"


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[argparse.Namespace]:
    """A comparison without programs and models."""

    @contextlib.contextmanager
    def server(*_: object) -> Iterator[None]:
        yield None

    for name in ("llama_server", "own_cluster", "Streams"):
        monkeypatch.setattr(serve, name, server)
    monkeypatch.setattr(serve, "build_llama", lambda _work, _program, amx: Path("llama-server"))
    monkeypatch.setattr(serve, "_models", lambda _arguments, folder: (folder / "gguf", folder / "pack"))
    before = signal.getsignal(signal.SIGTERM)
    yield argparse.Namespace(
        **{"shape": "1.1b", "precision": "q4", "threads": 1, "streams": (1, 4), "amx": True},
        **{"prompt_tokens": 8, "tokens": 8, "context": 128, "waves": 1, "repeats": 3},
        **{"options": "", "llama_options": "", "work": tmp_path},
    )
    signal.signal(signal.SIGTERM, before)


def rounds_until(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """Round number `last` fails; number 0 is the warm-up."""
    numbers = iter(range(last))

    def one(_self: object, streams: int) -> ServeRound:
        if next(numbers, None) is None:
            raise PeerError("it broke")
        return ServeRound(figures(streams, 0.5), figures(streams, 0.25), 50, 100)

    monkeypatch.setattr(serve._Contestants, "round", one)


def test_a_whole_comparison(
    arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds_until(monkeypatch, 100)
    compare_serve(arguments)
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert "error" not in record
    assert [(found["streams"], found["rounds"]) for found in record["streams"]] == [(1, 3), (4, 3)]
    assert (record["prefill_tokens"], record["llama_cpp_amx"]) == (64, True)
    assert list((arguments.work / "models").iterdir()) == []


def test_what_was_measured_before_a_failure_is_printed(
    arguments: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds_until(monkeypatch, 4)
    with pytest.raises(PeerError):
        compare_serve(arguments)
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert record["error"] == "it broke"
    assert [(found["streams"], found["rounds"]) for found in record["streams"]] == [(1, 2), (4, 1)]


def test_lengths_that_do_not_fit(arguments: argparse.Namespace) -> None:
    arguments.tokens = 121
    with pytest.raises(UserError, match="do not fit into --context 128"):
        compare_serve(arguments)
