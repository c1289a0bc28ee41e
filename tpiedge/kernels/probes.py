"""Measures this computer's limits (a roofline). Needs the native library."""

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from tpiedge.kernels.shared_library import KernelLibrary

_STEP_BYTES = 256  # tpiedge_probe_read reads only whole steps
_ROUNDS = 10_000


class Probes:
    """Measures with a buffer of `nbytes`, which must be larger than the caches. Not thread-safe."""

    def __init__(self, library: KernelLibrary, nbytes: int) -> None:
        self._dll = library.dll
        self._buffer = torch.ones(nbytes, dtype=torch.uint8)
        self._rounds_per_s: dict[bool, float] = {}  # by int8, as last measured

    def bytes_per_s(self, threads: int) -> float:
        """Measures how fast memory is read. Raises ValueError if the buffer is too small."""
        part = self._buffer.numel() // threads // _STEP_BYTES * _STEP_BYTES
        if part == 0:
            raise ValueError(f"{self._buffer.numel()} bytes are less than {_STEP_BYTES} for each thread")
        starts = (self._buffer.data_ptr() + thread * part for thread in range(threads))
        read = self._dll.tpiedge_probe_read
        return threads * part / _together([functools.partial(read, start, part) for start in starts])

    def operations_per_s(self, threads: int, *, int8: bool, seconds: float = 0.02) -> float:
        """Measures multiplications and additions per second, of f32 or 8-bit numbers."""
        if int8 not in self._rounds_per_s:
            rounds, taken_s = _ROUNDS, 0.0
            while (taken_s := _together([self._multiply(int8, rounds)])) < seconds / 4:
                rounds *= 2
            self._rounds_per_s[int8] = rounds / taken_s
        rounds = max(1, int(self._rounds_per_s[int8] * seconds))
        spent_s = _together([self._multiply(int8, rounds)] * threads)
        self._rounds_per_s[int8] = rounds / spent_s
        return float(threads * rounds * self._dll.tpiedge_probe_operations(int8) / spent_s)

    def _multiply(self, int8: bool, rounds: int) -> Callable[[], object]:
        return functools.partial(self._dll.tpiedge_probe_multiply, int8, rounds)


def _together(works: list[Callable[[], object]]) -> float:
    ready = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> tuple[float, float]:
        ready.wait()
        started = time.perf_counter()
        work()
        return started, time.perf_counter()

    with ThreadPoolExecutor(len(works)) as threads:
        spans = list(threads.map(run, works))
    return max(end for _, end in spans) - min(start for start, _ in spans)
