"""Kernels timed beside torch's, the memory and the processor's peak, in alternation."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tpiedge.bench.figures import spread
from tpiedge.bench.kernel_cases import Case
from tpiedge.kernels.dispatch import NATIVE_TOKENS
from tpiedge.kernels.linear import Linear
from tpiedge.kernels.probes import Probes
from tpiedge.kernels.shared_library import KernelLibrary
from tpiedge.units import counted

__all__ = ["Bench", "last_level_cache_bytes"]

_SAMPLE_S = 0.03
_SLOW_S = 0.25
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_LARGE_CACHE_BYTES = 32 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20}


def last_level_cache_bytes() -> int:
    """The largest cache that the system tells of; 32 MiB where it tells of none."""
    sizes = []
    for path in _CACHES.glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text.rstrip("KM")) * _UNITS.get(text[-1:], 1))
    return max(sizes, default=_LARGE_CACHE_BYTES)


@dataclass
class _Samples:
    """The times of one case, with one number of threads; the same place in every list is the same repeat."""

    own_s: list[float] = field(default_factory=list)
    torch_s: list[float] = field(default_factory=list)
    read_bytes_per_s: list[float] = field(default_factory=list)
    peak_per_s: list[float] = field(default_factory=list)


class Bench:
    """`library` None: torch alone, without a bound to compare with. `say` gets a line of progress now and then."""

    def __init__(self, library: KernelLibrary | None, buffer_bytes: int, say: Callable[[str], None]) -> None:
        self._library = library
        self._probes = None if library is None else Probes.create(library, buffer_bytes)
        self._say = say

    def measure(
        self, make: Callable[[], list[Case]], threads: Sequence[int], repeats: int
    ) -> list[dict[str, Any]]:
        """Cases with the same operands, each with every number of threads, as JSON tells of them."""
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
            own, peer = (
                pools.enter_context(Linear(case.arithmetic, threads, library))
                for library in (self._library, None)
            )
            native = own.native and _is_native(case)
            own_passes, _ = _warmed(case, own)
            peer_passes, peer_s = _warmed(case, peer)
            for _ in range(repeats):
                if self._probes is not None:
                    # The peak first: torch's threads spin for some milliseconds after their work.
                    samples.peak_per_s.append(self._probes.operations_per_s(threads, int8=case.int8))
                    samples.read_bytes_per_s.append(self._probes.bytes_per_s(threads))
                samples.own_s.append(_timed(case, own, own_passes))
                # Where torch takes long it is compared with, not studied.
                samples.torch_s.append(_timed(case, peer, peer_passes) if peer_passes else peer_s)
        return _report(case, threads, native, samples)


def _is_native(case: Case) -> bool:
    """Whether the kernels compute it, and not torch in their place."""
    return case.int8 or case.kernel == "attention" or case.tokens <= NATIVE_TOKENS


def _warmed(case: Case, linear: Linear) -> tuple[int, float]:
    """How often to go through the copies in a sample (0: one call is slow enough) and how long a first one took."""
    started = time.perf_counter()
    case.run(linear, 0)
    seconds = time.perf_counter() - started
    if seconds > _SLOW_S:
        return 0, seconds
    return max(1, round(_SAMPLE_S / (max(seconds, 1e-7) * case.copies))), seconds


def _timed(case: Case, linear: Linear, passes: int) -> float:
    """Seconds of a call."""
    copies = [*range(case.copies)] * passes or [0]
    started = time.perf_counter()
    for copy in copies:
        case.run(linear, copy)
    return (time.perf_counter() - started) / len(copies)


def _report(case: Case, threads: int, native: bool, samples: _Samples) -> dict[str, Any]:
    """Parts of the bounds are those of each repeat: a noisy neighbour slows both."""
    report: dict[str, Any] = {
        "kernel": case.kernel,
        "shape": case.shape,
        "precision": case.precision,
        "tokens": case.tokens,
        "threads": threads,
        "native": native,
        "bytes": case.nbytes,
        "operations": case.operations,
        "seconds": spread(samples.own_s),
        "bytes_per_s": spread([case.nbytes / own_s for own_s in samples.own_s]),
        "operations_per_s": spread([case.operations / own_s for own_s in samples.own_s]),
        "torch_seconds": spread(samples.torch_s),
        "times_torch": spread([t / own_s for t, own_s in zip(samples.torch_s, samples.own_s, strict=True)]),
        "read_bytes_per_s": None,
        "peak_operations_per_s": None,
        "of_read_bandwidth": None,
        "of_peak": None,
        "of_roofline": None,
    }
    if not samples.peak_per_s:
        return report
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
