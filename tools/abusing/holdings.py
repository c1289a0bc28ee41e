"""Descriptors, threads and memory of a cluster's processes, and their growth."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tpiedge.units import MIB

FILES, THREADS = 2, 4
"""How many more than before are no leak: a status that is asked for; the threads of a pool, which start one by one."""
RSS_BYTES, RSS_PART = 16 * MIB, 0.1
"""So much more memory is none either: the allocator keeps what was needed once. The larger one counts."""

_SAMPLES, _APART_S = 5, 0.1
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class ProcessHoldings:
    """The holdings of one process or of several. `rss`, `pss`: bytes; `pss` has shared memory in part."""

    processes: int
    files: int
    threads: int
    rss: int
    pss: int


Roles = Mapping[str, Iterable[int]]
"""Name of a role -> its process ids."""


def look(roles: Callable[[], Roles]) -> dict[str, ProcessHoldings]:
    """Medians of some samples, by role."""
    samples = []
    for _ in range(_SAMPLES):
        samples.append({role: _held(pids) for role, pids in roles().items()})
        time.sleep(_APART_S)
    return {role: _median([one[role] for one in samples if role in one]) for role in samples[-1]}


def growth(before: Mapping[str, ProcessHoldings], now: Mapping[str, ProcessHoldings]) -> list[str]:
    """Describes growth except that of memory, and processes that ended."""
    found = []
    for role in sorted({*before, *now}):
        then, new = before.get(role), now.get(role)
        if then is None or new is None or then.processes != new.processes:
            found.append(f"{role}: {_count(new)} instead of {_count(then)} processes")
            continue
        for what, allowed in (("files", FILES), ("threads", THREADS)):
            had, has = getattr(then, what), getattr(new, what)
            if has > had + allowed * then.processes:
                found.append(f"{role}: {has} {what} instead of {had}")
    return found


def memory_growth(before: Mapping[str, ProcessHoldings], now: Mapping[str, ProcessHoldings]) -> list[str]:
    """Names processes with more memory than before."""
    found = []
    for role in before.keys() & now.keys():
        had, has = before[role].rss, now[role].rss
        if has - had > max(RSS_BYTES * before[role].processes, int(RSS_PART * had)):
            found.append(f"{role}: {has / MIB:.0f} MiB of memory instead of {had / MIB:.0f}")
    return sorted(found)


def settle(
    more: Callable[[Mapping[str, ProcessHoldings]], list[str]], roles: Callable[[], Roles], limit_s: float
) -> tuple[float, list[str], dict[str, ProcessHoldings]]:
    """Wait until there is no more than before: seconds that took, what is still there at the limit, in the words of
    `more`, and what is held then."""
    started = time.monotonic()
    while True:
        now = look(roles)
        left = more(now)
        spent_s = time.monotonic() - started
        if not left or spent_s > limit_s:
            return spent_s, left, now
        time.sleep(_POLL_S)


def _held(pids: Iterable[int]) -> ProcessHoldings:
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            memory = process.memory_full_info()
            found.append((_descriptors(process), process.num_threads(), memory.rss, memory.pss))
    sums = [sum(column) for column in zip(*found, strict=True)] or [0, 0, 0, 0]
    return ProcessHoldings(len(found), *sums)


def _descriptors(process: psutil.Process) -> int:
    """Counts descriptors without those of packs: the file server keeps the last ones open, a few dozen at most."""
    files = [file for file in process.open_files() if "packs" in Path(file.path).parts]
    return process.num_fds() - len(files)


def _median(samples: Sequence[ProcessHoldings]) -> ProcessHoldings:
    return ProcessHoldings(
        *(
            int(statistics.median_low([getattr(one, name) for one in samples]))
            for name in ProcessHoldings.__slots__
        )
    )


def _count(held: ProcessHoldings | None) -> int:
    return 0 if held is None else held.processes
