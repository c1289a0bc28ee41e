import json

import pytest

from tools.peers.contestants import Answer, read_llama_bench, read_tpiedge
from tools.peers.decode import read_speed, reads_of_setting, report_of_setting, size_of_setting
from tools.peers.limits import Limit
from tools.peers.offload import Run, report_of_limit
from tools.peers.serve import ServeRound, report_of_streams
from tools.peers.table import decode_table
from tpiedge.lab.bench.serve_figures import RoundFigures, TimedAnswer
from tpiedge.lab.memory_group import MemoryUse

LIMIT = Limit(600, 1000)
USE = MemoryUse(peak_bytes=590, refusals=7, oom_kills=0)


def answered(s_per_token: float) -> Run:
    return Run(Answer(s_per_token, {"why": "because"}), None, USE, 9.0)


def failed(words: str) -> Run:
    return Run(None, words, USE, 150.0)


def test_llama_bench_nanoseconds_become_seconds_per_token():
    test = {"avg_ns": 4_000_000_000, "n_gen": 8, "build_commit": "abc", "model_type": "llama 1B BF16"}
    assert read_llama_bench(json.dumps([test])).s_per_token == 0.5


def test_tpiedge_record_is_read_with_details():
    names = ("peak_rss_bytes", "weight_bytes", "disk_read_bytes", "weight_wait_s", "compute_s", "more")
    record = {"s_per_token": 0.4, "token_ids": [7, 8], "nodes": [dict.fromkeys(names, 1)]}
    detail = {"token_ids": [7, 8]} | dict.fromkeys(names[:-1], 1)
    assert read_tpiedge(json.dumps(record)) == Answer(0.4, detail)


def test_limit_report_compares_round_ratios_with_requirement():
    runs = {
        "tpiedge": [answered(1.0), answered(2.0), answered(1.0)],
        "llama.cpp": [answered(2.0), answered(2.0), answered(1.2)],
        "airllm": [answered(8.0), failed("no answer in 150 s")],
    }
    report = report_of_limit(LIMIT, runs, [1e9, 3e9, 2e9])
    versus = report["times_slower_than_tpiedge"]
    assert versus["llama.cpp"] == {
        "ratio": {"median": 1.2, "min": 1.0, "max": 2.0},
        "required": 1.3,
        "met": False,
    }
    assert versus["airllm"]["ratio"]["median"] == 8.0
    assert versus["airllm"]["met"]
    assert report["disk_direct_bytes_per_s"]["median"] == 2e9
    (first, second) = report["contestants"]["airllm"]["runs"]
    assert first | {"why": "because", "peak_bytes": 590, "refusals": 7} == first
    assert (second["s_per_token"], second["failure"]) == (None, "no answer in 150 s")


def test_llama_bench_speeds_are_read() -> None:
    tests = [
        {"n_prompt": 256, "n_gen": 0, "avg_ts": 120.5},
        {"n_prompt": 512, "n_gen": 0, "avg_ts": 110.5},
        {"n_prompt": 0, "n_gen": 64, "avg_ts": 48.25},
    ]
    assert read_speed(json.dumps(tests)) == {"prefill 256": 120.5, "prefill 512": 110.5, "decode": 48.25}
    with pytest.raises(ValueError):
        read_speed(json.dumps(tests[:2]))


def test_setting_report_compares_pair_ratios_with_requirement() -> None:
    peer = [speed(100, 10), speed(50, 20), speed(100, 40)]
    own = [speed(210, 10), speed(100, 18), speed(190, 40)]
    report = report_of_setting(peer, own, {"prefill 512": 2.0, "decode": 1.0})
    prefill, decode = report["prefill 512"], report["decode"]
    assert prefill["times_faster_than_llama_cpp"] == {"median": 2.0, "min": 1.9, "max": 2.1}
    assert (prefill["required"], prefill["met"]) == (2.0, True)
    assert decode["times_faster_than_llama_cpp"] == {"median": 1.0, "min": 0.9, "max": 1.0}
    assert decode["met"] is True
    assert decode["tpiedge_tokens_per_s"] == {"median": 18, "min": 10, "max": 40}
    of_two = report_of_setting(peer, own, {"decode": 1.2})
    assert (of_two["prefill 512"]["required"], of_two["prefill 512"]["met"]) == (None, None)
    assert (of_two["decode"]["required"], of_two["decode"]["met"]) == (1.2, False)


def speed(prefill: float, decode: float) -> dict[str, float]:
    return {"prefill 512": prefill, "decode": decode}


def test_decode_table_has_every_bound_and_the_error() -> None:
    found = report_of_setting([speed(100, 10)], [speed(300, 9)], {"decode": 1.05})
    setting = {"shape": "1.1b", "precision": "q4_k_m", "threads": 2, **found}
    size = size_of_setting(1_000_000, 1_010_000, 1.02)
    reads = reads_of_setting([20e9, 20e9], [18e9, 15e9], 0.9)
    setting |= {"bytes": size, **reads}
    record = {"processor": "Zen", "llama.cpp": "1", "repeats": 5, "settings": [setting]}
    lines = [line.split() for line in decode_table(record | {"error": "no memory"}).splitlines()]
    name = ["1.1b", "q4_k_m,", "2", "threads"]
    assert lines[2][:6] == [*name, "prefill", "512"]
    assert lines[2][-2:] == ["3.00", "(3.00-3.00)"]
    assert lines[3][4:6] == ["decode", "10.00"]
    assert lines[3][-4:] == ["0.90", "(0.90-0.90)", "1.05", "misses"]
    assert lines[4][4:] == ["bytes", "1.0", "MB", "1.0", "MB", "1.0100", "1.02", "meets"]
    part = ["20.0", "GB/s", "16.5", "GB/s", "0.82", "(0.75-0.90)", "0.9", "misses"]
    assert lines[5][4:] == ["of", "memory", *part]
    assert lines[6] == ["error:", "no", "memory"]
    assert reads_of_setting([], [18e9], 0.9) == {}
    assert size_of_setting(100, 103, 1.02)["met"] is False
    assert size_of_setting(100, 103, None)["met"] is None


def figures(streams: int, step_s: float) -> RoundFigures:
    """Answers in step: a token of each stream every `step_s`."""
    token_s = tuple(1 + step_s * number for number in range(9))
    return RoundFigures.of([TimedAnswer(0.0, token_s, token_s[-1], 8)] * streams, streams)


def test_streams_report_compares_both_servers() -> None:
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
    mixture = report_of_streams(16, rounds, is_mixture=True)
    assert (
        mixture["answering_tokens_per_s"]["required"],
        mixture["answering_to_own_prefill"]["required"],
    ) == (
        1.0,
        None,
    )
