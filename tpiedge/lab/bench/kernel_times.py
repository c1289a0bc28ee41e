"""Times kernels. For comparison, measures torch's kernels, memory reads and the processor's peak."""

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tpiedge.kernels.library import NATIVE_TOKENS
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.probes import Probes
from tpiedge.kernels.shared_library import KernelLibrary
from tpiedge.lab.bench.figures import spread
from tpiedge.lab.bench.kernel_cases import Case
from tpiedge.units import counted

_SAMPLE_S = 0.01
_SLOW_S = 0.25
_QUICKEST_S = 1e-7
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_LARGE_CACHE_BYTES = 32 << 20
_COMPARED = (
    *("torch_seconds", "times_torch", "read_bytes_per_s", "peak_operations_per_s"),
    *("of_read_bandwidth", "of_peak", "of_roofline"),
)
_UNITS = {"K": 1 << 10, "M": 1 << 20}


def last_level_cache_bytes() -> int:
    """Returns the largest cache size that the system reports, or 32 MiB."""
    sizes = []
    for path in _CACHES.glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text.rstrip("KM")) * _UNITS.get(text[-1:], 1))
    return max(sizes, default=_LARGE_CACHE_BYTES)


@dataclass
class _Samples:
    own_s: list[float] = field(default_factory=list)
    torch_s: list[float] = field(default_factory=list)
    read_bytes_per_s: list[float] = field(default_factory=list)
    peak_per_s: list[float] = field(default_factory=list)


class Bench:
    """Measures cases and the machine's bounds. Without `library`, measures only torch."""

    def __init__(self, library: KernelLibrary | None, buffer_bytes: int, say: Callable[[str], None]) -> None:
        self._library = library
        self._probes = None if library is None else Probes(library, buffer_bytes)
        self._say = say

    def measure(
        self, make: Callable[[], list[Case]], threads: Sequence[int], repeats: int
    ) -> list[dict[str, Any]]:
        """Measures the cases of `make()` with each number of `threads`. Returns a JSON object for each measurement."""
        found = []
        for case in make():
            for count in threads:
                self._say(f"{case}, {counted(count, 'thread')}")
                found.append(self._measure(case, count, repeats))
        return found

    def _measure(self, case: Case, threads: int, repeats: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        samples = _Samples()
        with ExitStack() as pools:
            own = pools.enter_context(Linear(case.arithmetic, threads, self._library))
            native = own.pool is not None and _is_native(case)
            own_timer, peer_timer = _CallTimer(case, own), None
            if not case.quantised:
                peer_timer = _CallTimer(case, pools.enter_context(Linear(case.arithmetic, threads, None)))
            for _ in range(repeats):
                if self._probes is not None:
                    # The peak first: torch's threads spin for some milliseconds after their work.
                    peak = self._probes.operations_per_s(threads, int8=case.int8, seconds=_SAMPLE_S)
                    samples.peak_per_s.append(peak)
                    samples.read_bytes_per_s.append(self._probes.bytes_per_s(threads))
                samples.own_s.append(own_timer.sample())
                if peer_timer is not None:
                    # If torch takes long, one sample suffices to compare.
                    slow = peer_timer.first_s > _SLOW_S
                    samples.torch_s.append(peer_timer.first_s if slow else peer_timer.sample())
        return _report(case, threads, native, samples)


def _is_native(case: Case) -> bool:
    return case.int8 or case.kernel == "attention" or case.tokens <= NATIVE_TOKENS


class _CallTimer:
    """Times calls of a case. `first_s`: the seconds of the first call, which loading may prolong."""

    def __init__(self, case: Case, linear: Linear) -> None:
        self._case = case
        self._linear = linear
        self._copies = itertools.cycle(range(case.copies))
        self._calls = 1
        self.first_s = self.sample()
        if self.first_s <= _SLOW_S:  # one more call says better how many a sample needs
            self._calls = 1
            self.sample()

    def sample(self) -> float:
        copies = list(itertools.islice(self._copies, self._calls))
        started = time.perf_counter()
        for copy in copies:
            self._case.run(self._linear, copy)
        seconds = (time.perf_counter() - started) / len(copies)
        self._calls = max(1, round(_SAMPLE_S / max(seconds, _QUICKEST_S)))
        return seconds


def _report(case: Case, threads: int, native: bool, samples: _Samples) -> dict[str, Any]:
    report: dict[str, Any] = {
        "kernel": case.kernel,
        "shape": case.shape,
        "precision": case.precision,
        "tokens": case.tokens,
        "threads": threads,
        "native": native,
        "repeats": len(samples.own_s),
        "bytes": case.nbytes,
        "operations": case.operations,
        "seconds": spread(samples.own_s),
        "bytes_per_s": spread([case.nbytes / own_s for own_s in samples.own_s]),
        "operations_per_s": spread([case.operations / own_s for own_s in samples.own_s]),
        **dict.fromkeys(_COMPARED),
    }
    if samples.torch_s:
        pairs = zip(samples.torch_s, samples.own_s, strict=True)
        report["torch_seconds"] = spread(samples.torch_s)
        report["times_torch"] = spread([torch_s / own_s for torch_s, own_s in pairs])
    if not samples.peak_per_s:
        return report
    # Ratios within each repeat: a noisy neighbour slows the kernel and the measured bound alike.
    bounds = list(zip(samples.own_s, samples.read_bytes_per_s, samples.peak_per_s, strict=True))
    report["peak_operations_per_s"] = spread(samples.peak_per_s)
    report["of_peak"] = spread([case.operations / own_s / peak for own_s, _, peak in bounds])
    if case.streams:
        report["read_bytes_per_s"] = spread(samples.read_bytes_per_s)
        report["of_read_bandwidth"] = spread([case.nbytes / own_s / read for own_s, read, _ in bounds])
        report["of_roofline"] = spread(
            [max(case.nbytes / read, case.operations / peak) / own_s for own_s, read, peak in bounds]
        )
    return report
