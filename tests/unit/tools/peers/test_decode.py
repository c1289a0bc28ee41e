"""What llama-bench says, and what comes of both sides' speeds."""

import argparse
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.peers import decode
from tools.peers.decode import Speed, compare_decode, read_speed, report_of_setting
from tpiedge.errors import PeerError
from tpiedge.launch.child import Place


def test_what_llama_bench_says() -> None:
    tests = [
        {"n_prompt": 512, "n_gen": 0, "avg_ts": 120.5},
        {"n_prompt": 0, "n_gen": 64, "avg_ts": 48.25},
    ]
    assert read_speed(json.dumps(tests)) == Speed(120.5, 48.25)
    with pytest.raises(ValueError):
        read_speed(json.dumps(tests[:1]))


def test_ratios_are_of_pairs() -> None:
    peer = [Speed(100, 10), Speed(50, 20), Speed(100, 40)]
    own = [Speed(210, 10), Speed(100, 18), Speed(190, 40)]
    report = report_of_setting(peer, own)
    prefill, decode = report["prefill"], report["decode"]
    assert prefill["times_faster_than_llama_cpp"] == {"median": 2.0, "min": 1.9, "max": 2.1}
    assert (prefill["required"], prefill["met"]) == (2.0, True)
    assert decode["times_faster_than_llama_cpp"] == {"median": 1.0, "min": 0.9, "max": 1.0}
    assert decode["met"] is True
    assert decode["tpiedge_tokens_per_s"] == {"median": 18, "min": 10, "max": 40}
    assert report_of_setting(peer, [Speed(100, 9)] * 3)["decode"]["met"] is False
    of_two = report_of_setting(peer, own, {"decode": 1.2})
    assert (of_two["prefill"]["required"], of_two["prefill"]["met"]) == (None, None)
    assert (of_two["decode"]["required"], of_two["decode"]["met"]) == (1.2, False)


# A comparison that ends early keeps what it has found.


@pytest.fixture
def compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[Callable[[int], None]], None]]:
    """Runs a comparison without programs and models, and keeps what it prints as `out`. `fail`: called before every
    run of llama.cpp with its number."""

    @contextlib.contextmanager
    def cluster(_pack: Path, _threads: int, _work: object) -> Iterator[tuple[object, None, decode._Machines]]:
        yield SimpleNamespace(stats=lambda: [SimpleNamespace(weight_bytes=7)]), None, decode._Machines()

    def write(_shape: str, _precision: str, path: Path) -> None:
        path.write_bytes(b"gguf")

    monkeypatch.setattr(decode, "build_llama", lambda _work: Path("llama-bench"))
    monkeypatch.setattr(decode, "write_random_gguf", write)
    monkeypatch.setattr(decode, "checked", lambda _command: None)
    monkeypatch.setattr(decode, "_cluster", cluster)
    monkeypatch.setattr(decode, "_own_speed", lambda *_: Speed(200, 20))
    before = signal.getsignal(signal.SIGTERM)

    def run(fail: Callable[[int], None]) -> None:
        count = 0

        def peer(*_: object) -> Speed:
            nonlocal count
            fail(count)
            count += 1
            return Speed(100, 10)

        monkeypatch.setattr(decode, "_peer_speed", peer)
        wish = {"shapes": ["1.1b"], "precisions": ["q4", "q8"], "threads": (1, 2), "prompt_tokens": 8}
        arguments = argparse.Namespace(**wish, work=tmp_path, tokens=4, repeats=3, testbed=None, wire="f32")
        try:
            compare_decode(arguments)
        finally:
            assert list((tmp_path / "models").iterdir()) == []
            run.out = capsys.readouterr().out  # type: ignore[attr-defined]

    yield run
    signal.signal(signal.SIGTERM, before)


def test_a_whole_comparison(compare: Any) -> None:
    compare(lambda _count: None)
    record = json.loads(compare.out)
    assert "error" not in record
    found = [(setting["precision"], setting["threads"], setting["rounds"]) for setting in record["settings"]]
    assert found == [("q4", 1, 3), ("q4", 2, 3), ("q8", 1, 3), ("q8", 2, 3)]
    assert record["settings"][0]["gguf_bytes"] == 4
    assert record["settings"][0]["prefill"]["times_faster_than_llama_cpp"]["median"] == 2.0


@pytest.mark.parametrize(
    ("error", "words"), [(PeerError("it broke"), "it broke"), (KeyboardInterrupt(), "KeyboardInterrupt")]
)
def test_what_was_measured_before_a_failure_is_printed(
    compare: Any, error: BaseException, words: str
) -> None:
    def fail(count: int) -> None:
        if count == 8:  # the third round of the third setting
            raise error

    with pytest.raises(type(error)):
        compare(fail)
    record = json.loads(compare.out)
    assert record["error"] == words
    found = [(setting["precision"], setting["threads"], setting["rounds"]) for setting in record["settings"]]
    assert found == [("q4", 1, 3), ("q4", 2, 3), ("q8", 1, 2)]


def test_a_comparison_that_is_ended_says_so(compare: Any) -> None:
    def end(count: int) -> None:
        if count == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as raised:
        compare(end)
    assert raised.value.code == 128 + signal.SIGTERM
    record = json.loads(compare.out)
    assert record["error"] == "ended by SIGTERM"
    assert [setting["rounds"] for setting in record["settings"]] == [2]


def test_a_failure_before_anything_was_measured_prints_nothing(compare: Any) -> None:
    def fail(_count: int) -> None:
        raise PeerError("it broke")

    with pytest.raises(PeerError):
        compare(fail)
    assert compare.out == ""


def test_a_run_that_does_not_end_is_the_peers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 900)

    monkeypatch.setattr(subprocess, "run", run)
    work = SimpleNamespace(program=Path("llama-bench"), prompt_tokens=1, tokens=1)
    with pytest.raises(PeerError, match="did not end within 900 s"):
        decode._peer_speed(Path("model.gguf"), 1, work, decode._Machines())  # type: ignore[arg-type]


def test_two_machines_are_the_same_for_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each at the place of a device, under its limits."""
    places = (Place("10.0.0.1", ("enter", "one")), Place("10.0.0.2", ("enter", "two")))
    asked: dict[str, Any] = {}

    def launch(_model: object, layout: Any, *_: object, places: object) -> Any:
        asked.update(nodes=layout.nodes, wire=layout.wire, places=places)
        return contextlib.nullcontext("cluster")

    def rpc_server(program: Path, place: Place, threads: int, cache: Path) -> Any:
        asked.update(server=(program, place, threads, cache))
        return contextlib.nullcontext("10.0.0.2:50052")

    model = SimpleNamespace(config=SimpleNamespace(num_layers=22))
    for name, found in (("prepare", model), ("plan_cluster", None)):
        monkeypatch.setattr(decode, name, lambda *_, found=found: found)
    monkeypatch.setattr(decode, "launch", launch)
    monkeypatch.setattr(decode, "rpc_server", rpc_server)
    testbed: Any = SimpleNamespace(places=lambda: contextlib.nullcontext(places))
    work = decode._Work(Path("bin/llama-bench"), tmp_path, 8, 4, 1, testbed, "int8")
    with decode._cluster(tmp_path / "pack", 1, work) as (cluster, _, machines):
        assert cluster == "cluster"
        assert machines.prefix == ("enter", "one")
        assert machines.flags == {"--rpc": "10.0.0.2:50052", "-ngl": 11}
    server = (Path("bin/ggml-rpc-server"), places[1], 1, tmp_path)
    assert asked == {"nodes": 2, "wire": "int8", "places": places, "server": server}
    assert decode._required({"shape": "7b", "precision": "q4"}, work) == {"decode": 1.2}
    assert decode._required({"shape": "7b", "precision": "q8"}, work) == {}
