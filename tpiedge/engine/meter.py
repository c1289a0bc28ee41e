"""Where a node's time goes."""

import time
from dataclasses import dataclass
from types import TracebackType

__all__ = ["Meter"]


@dataclass
class Meter:
    """Seconds and counts since the node was ready. Only the engine thread writes; any thread may read.

    `attention_s` and `ffn_s` cover the blocks' own arithmetic, `reduce_wait_s` the collectives, and `head_s` (rank 0)
    embedding rows, final norm, LM head and sampling.
    """

    attention_s: float = 0.0
    ffn_s: float = 0.0
    reduce_wait_s: float = 0.0
    head_s: float = 0.0
    steps: int = 0
    tokens: int = 0
    #: How far the engine is, for heartbeats: the step under way and its block.
    step: int = 0
    block: int = 0

    def __post_init__(self) -> None:
        self._attending = _Lap(self, "attention_s")
        self._feeding = _Lap(self, "ffn_s")
        self._reducing = _Lap(self, "reduce_wait_s")
        self._heading = _Lap(self, "head_s")

    @property
    def compute_s(self) -> float:
        """Of all blocks."""
        return self.attention_s + self.ffn_s

    def attending(self) -> "_Lap":
        """Time a `with` block as the arithmetic of an attention block."""
        return self._attending

    def feeding(self) -> "_Lap":
        """Time a `with` block as the arithmetic of an FFN block."""
        return self._feeding

    def reducing(self) -> "_Lap":
        """Time a `with` block as a collective."""
        return self._reducing

    def heading(self) -> "_Lap":
        """Time a `with` block as rank 0's own work."""
        return self._heading


class _Lap:
    """Adds the time of a `with` block to a field of the meter. Made once: it runs twice per block, with cold caches."""

    __slots__ = ("_field", "_meter", "_started")

    def __init__(self, meter: Meter, field: str) -> None:
        self._meter = meter
        self._field = field
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        spent_s = time.perf_counter() - self._started
        setattr(self._meter, self._field, getattr(self._meter, self._field) + spent_s)
