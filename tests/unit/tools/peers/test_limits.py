"""Limits as parts of the model's file or as sizes, and what is asked for under them."""

import pytest

from tools.peers.limits import Limit, parse_limits, required_ratio
from tpiedge.errors import UserError

MODEL = 2_000_000_000


def test_parts_and_sizes_ascending_without_repetition():
    limits = parse_limits("90%, 700MB,60%,1.2GB", MODEL)
    assert [limit.nbytes for limit in limits] == [700_000_000, 1_200_000_000, 1_800_000_000]
    assert [limit.percent for limit in limits] == [35, 60, 90]


@pytest.mark.parametrize("text", ["", "much", "60%,", "0%", "0", "-5%", "60%%"])
def test_what_is_no_limit(text):
    with pytest.raises(UserError):
        parse_limits(text, MODEL)


@pytest.mark.parametrize(
    ("peer", "percent", "ratio"),
    [
        ("llama.cpp", 60, 1.3),
        ("llama.cpp", 90, 1.8),
        ("llama.cpp", 75, None),
        ("accelerate", 75, 2.0),
        ("accelerate device_map", 60, 2.0),
        ("airllm", 90, 5.0),
    ],
)
def test_required_ratios(peer, percent, ratio):
    (limit,) = parse_limits(f"{percent}%", 2_200_119_840)  # where a percent is no whole number of bytes
    assert required_ratio(peer, limit) == ratio


def test_a_size_of_the_right_part_counts_too():
    assert required_ratio("llama.cpp", Limit(1_320_000_000, 2_200_119_840)) == 1.3
