"""A clock that tests move by hand."""


class ManualClock:
    """Starts at zero and stands still until `advance`."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
