"""Medians and ratios."""

from tools.peers.spread import prompt_ids, ratios
from tpiedge.lab.bench.figures import spread


def test_spread():
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}


def test_ratios_pair_by_pair_without_what_failed_or_did_not_run():
    assert ratios([2.0, None, 6.0, 8.0], [1.0, 1.0, 2.0, None, 1.0]) == [2.0, 3.0]


def test_prompts_repeat_and_vary():
    assert prompt_ids(8) == prompt_ids(9)[:8]
    assert len(set(prompt_ids(64))) == 64
