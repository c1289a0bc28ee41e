"""How often a benchmark measures each of its cases: as often as its time allows, within bounds."""

from collections.abc import Iterator

from tpiedge.clock import Clock


class Repeats:
    """The repeats of `cases` cases, `least` to `most` of each, which are to end within `seconds` from now on.

    Each case may take an even part of the time that is left then, so what one does not take is the others'. `least`
    counts more than the time.
    """

    def __init__(self, cases: int, seconds: float, clock: Clock, *, least: int, most: int) -> None:
        self._cases = cases
        self._end = clock.now() + seconds
        self._clock = clock
        self._least = least
        self._most = most

    def of_next_case(self) -> Iterator[int]:
        """Yields the number of each repeat of the next case, once the one before it is done.

        Beyond `least` a repeat comes only if it ends in time where it takes as long as those before it on average.
        """
        started = self._clock.now()
        allowed_s = (self._end - started) / max(1, self._cases)
        self._cases -= 1
        for done in range(self._most):
            spent_s = self._clock.now() - started
            if done >= self._least and spent_s * (done + 1) / done > allowed_s:
                return
            yield done
