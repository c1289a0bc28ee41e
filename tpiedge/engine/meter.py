"""Where a node's time goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Meter"]


@dataclass
class Meter:
    """Seconds and counts since the node was ready. Only the engine thread writes; any thread may read.

    `compute_s` covers the blocks' own arithmetic, `reduce_wait_s` the collectives, `weight_wait_s` the wait for
    weights that are not yet in memory, and `head_s` (rank 0) embedding rows, final norm, LM head and sampling.
    """

    compute_s: float = 0.0
    reduce_wait_s: float = 0.0
    weight_wait_s: float = 0.0
    head_s: float = 0.0
    steps: int = 0
    tokens: int = 0
    #: How far the engine is, for heartbeats: the step under way and its block.
    step: int = 0
    block: int = 0

    @contextmanager
    def computing(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.compute_s += time.perf_counter() - started

    @contextmanager
    def reducing(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.reduce_wait_s += time.perf_counter() - started

    @contextmanager
    def heading(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.head_s += time.perf_counter() - started
