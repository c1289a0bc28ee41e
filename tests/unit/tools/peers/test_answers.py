"""What the contestants print, and the record and the table made of it."""

import json

import pytest

from tools.peers.contestants import Answer, read_driver, read_llama_bench, read_tpiedge
from tools.peers.limits import Limit
from tools.peers.offload import Run, is_due, report_of_limit
from tools.peers.table import table
from tpiedge.host.memory_group import MemoryUse

LIMIT = Limit(600, 1000)
USE = MemoryUse(peak_bytes=590, refusals=7, oom_kills=0)


def answered(s_per_token: float) -> Run:
    return Run(Answer(s_per_token, {"why": "because"}), None, USE, 9.0)


def failed(words: str) -> Run:
    return Run(None, words, USE, 150.0)


def test_a_driver_may_talk_before_its_answer():
    out = 'saved as: x\n{"s_per_token": 2.5, "seconds": [2.0, 3.0], "token_ids": [1, 2]}\n'
    assert read_driver(out) == Answer(2.5, {"token_ids": [1, 2], "seconds": [2.0, 3.0]})


def test_llama_bench_counts_nanoseconds_of_the_whole_test():
    test = {"avg_ns": 4_000_000_000, "n_gen": 8, "build_commit": "abc", "model_type": "llama 1B BF16"}
    assert read_llama_bench(json.dumps([test])).s_per_token == 0.5


def test_tpiedge_tells_what_it_read():
    names = ("peak_rss_bytes", "weight_bytes", "disk_read_bytes", "weight_wait_s", "compute_s", "more")
    record = {"s_per_token": 0.4, "token_ids": [7, 8], "nodes": [dict.fromkeys(names, 1)]}
    detail = {"token_ids": [7, 8]} | dict.fromkeys(names[:-1], 1)
    assert read_tpiedge(json.dumps(record)) == Answer(0.4, detail)


@pytest.mark.parametrize("out", ["", "no JSON", "[]"])
def test_an_answer_that_is_none(out):
    with pytest.raises((ValueError, IndexError)):
        read_llama_bench(out)
    with pytest.raises((ValueError, IndexError, TypeError)):
        read_driver(out)


def test_ratios_are_of_rounds_and_compared_with_what_is_required():
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


def test_who_never_answers_has_no_ratio():
    runs = {"tpiedge": [answered(1.0)], "accelerate": [failed("out of memory")]}
    report = report_of_limit(LIMIT, runs, [])
    assert report["contestants"]["accelerate"]["s_per_token"] is None
    assert report["times_slower_than_tpiedge"]["accelerate"] == {
        "ratio": None,
        "required": 2.0,
        "met": None,
    }


def test_the_table_tells_what_is_missed_failed_and_missing():
    runs = {
        "tpiedge": [answered(1.0)],
        "llama.cpp": [answered(1.2)],
        "accelerate": [failed("no answer in 150 s")],
    }
    record = {
        "model": "tiny",
        "model_bytes": 1000,
        "threads": 2,
        "not_installed": {"airllm": "pip: no such version"},
        "limits": [report_of_limit(LIMIT, runs, [2e9])],
    }
    text = table(record)
    assert "not installed: airllm: pip: no such version" in text
    (llama,) = (line for line in text.splitlines() if line.startswith("llama.cpp"))
    assert "1.200 (1.200-1.200)" in llama
    assert llama.endswith("1.3  MISSED")
    (accelerate,) = (line for line in text.splitlines() if line.startswith("accelerate"))
    assert accelerate.endswith("2.0  no answer in 150 s")


def test_the_slow_run_in_part_of_the_rounds_and_nobody_after_two_failures():
    assert [is_due(number, 5, 0.6, []) for number in range(5)] == [True, True, True, False, False]
    fine, broken = answered(1.0), failed("x")
    assert is_due(3, 5, 1.0, [broken, fine, broken])
    assert not is_due(3, 5, 1.0, [fine, broken, broken])
    killed = Run(None, "out of memory", MemoryUse(600, 7, oom_kills=1), 9.0)
    assert is_due(3, 5, 1.0, [killed, killed])  # another time it may fit
