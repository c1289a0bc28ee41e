from collections.abc import Sequence

import pytest

from tests.fakes.clock import ManualClock
from tpiedge.engine.constraints import AnswerConstraint, MaskWaits


class Waits:
    """An account whose waits bring nothing, or one piece of news each `news_s`."""

    def __init__(self, news_s: float | None = None) -> None:
        self.clock = ManualClock()
        self.waited: list[float] = []
        self.unknown = 0
        self._news_s = news_s
        self.account = MaskWaits(self.clock.now, self._wait)

    def _wait(self, missing: Sequence[AnswerConstraint], limit_s: float) -> None:
        assert len(missing) == self.unknown
        self.waited.append(limit_s if self._news_s is None else min(limit_s, self._news_s))
        self.clock.advance(self.waited[-1])
        self.unknown -= self._news_s is not None and self._news_s <= limit_s

    def step(self, unknown: int, *, lone: bool = False) -> float:
        self.waited = []
        self.account.start_step(lone=lone)
        for _ in range(2):
            self.unknown = unknown
            asked = [(object(), lambda at=at: at >= self.unknown) for at in range(unknown)]
            self.account.until(asked)  # type: ignore[arg-type]
        return sum(self.waited)


@pytest.mark.parametrize("unknown", [1, 16, 64])
def test_mask_wait_of_a_step_does_not_grow_with_answers(unknown: int) -> None:
    waits = Waits()
    assert waits.step(0) == 0.0
    assert waits.step(unknown) == pytest.approx(0.001)
    waits.account.computed(0.2)
    assert waits.step(unknown) == pytest.approx(0.02)
    assert waits.step(unknown, lone=True) == pytest.approx(0.05)


def test_masks_arriving_in_time_are_waited_for() -> None:
    waits = Waits(news_s=0.001)
    waits.account.computed(0.2)
    assert waits.step(4) == pytest.approx(0.008)
    assert waits.step(64) == pytest.approx(0.02)
