import json

from tools.peers.contestants import Answer, read_llama_bench, read_tpiedge
from tools.peers.limits import Limit
from tools.peers.offload import Run, report_of_limit
from tpiedge.lab.memory_group import MemoryUse

LIMIT = Limit(600, 1000)
USE = MemoryUse(peak_bytes=590, refusals=7, oom_kills=0)


def answered(s_per_token: float) -> Run:
    return Run(Answer(s_per_token, {"why": "because"}), None, USE, 9.0)


def failed(words: str) -> Run:
    return Run(None, words, USE, 150.0)


def test_llama_bench_counts_nanoseconds_of_the_whole_test():
    test = {"avg_ns": 4_000_000_000, "n_gen": 8, "build_commit": "abc", "model_type": "llama 1B BF16"}
    assert read_llama_bench(json.dumps([test])).s_per_token == 0.5


def test_tpiedge_tells_what_it_read():
    names = ("peak_rss_bytes", "weight_bytes", "disk_read_bytes", "weight_wait_s", "compute_s", "more")
    record = {"s_per_token": 0.4, "token_ids": [7, 8], "nodes": [dict.fromkeys(names, 1)]}
    detail = {"token_ids": [7, 8]} | dict.fromkeys(names[:-1], 1)
    assert read_tpiedge(json.dumps(record)) == Answer(0.4, detail)


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
