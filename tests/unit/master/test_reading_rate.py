"""How long prompts take to be read, as tables of what was read when."""

import pytest

from tpiedge.master.reading_rate import ReadingRate


def rate_of(*readings: tuple[float, tuple[int, ...]]) -> float:
    """After times with prompts: the seconds of each, and the tokens of the prompts."""
    rate, now = ReadingRate(), 0.0
    for seconds, prompts in readings:
        for _ in prompts:
            rate.begin(now)
        for tokens in prompts:
            rate.read(tokens)
        now += seconds
        rate.rest(now)
        rate.rest(now + 1.0)
        now += 100.0
    return rate.token_s


@pytest.mark.parametrize(
    ("readings", "token_s"),
    [
        ([], 0.0),
        ([(2.0, (200,))], 0.01),
        ([(40.0, (4000, 10))], 40 / 4010),
        ([(4.0, (200, 200))], 0.01),
        ([(9.0, (63,))], 0.0),
        ([(0.2, (200,)), (2.0, (200,))], 0.01),
        ([(2.0, (200,)), (0.2, (200,))], 0.01),
        ([(2.0, (200,)), *[(0.2, (200,))] * 16], 0.001),
        ([(5.0, ())], 0.0),
    ],
    ids=str,
)
def test_the_slowest_of_late_counts_and_prompts_beside_each_other_together(
    readings: list[tuple[float, tuple[int, ...]]], token_s: float
) -> None:
    """A fast one may have been kept from before."""
    assert rate_of(*readings) == pytest.approx(token_s)
