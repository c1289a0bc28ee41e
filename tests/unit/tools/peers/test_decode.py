import json

import pytest

from tools.peers.decode import Speed, read_speed, report_of_setting


def test_what_llama_bench_says() -> None:
    tests = [{"n_prompt": 512, "n_gen": 0, "avg_ts": 120.5}, {"n_prompt": 0, "n_gen": 64, "avg_ts": 48.25}]
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
