"""Checks of the computer: processor, memory, swap, disk, clock."""

import errno
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from tpiedge.doctor.finding import Finding, fail, ok, warn
from tpiedge.errors import DiskFull
from tpiedge.host.cgroups import Cgroups
from tpiedge.host.device import available_memory_bytes, default_threads, free_disk_bytes, usable_cores
from tpiedge.host.disk_speed import DiskSpeed, measure_disk
from tpiedge.host.process_limits import LEAST_TO_COMPUTE, address_limit
from tpiedge.host.usage import cpu_name
from tpiedge.units import GIB, MIB, counted, format_bytes

_X86 = ("x86_64", "AMD64")
_WANTED = ("avx2", "fma")
_ALSO = ("avx512f", "avx512_bf16", "amx_bf16", "avx_vnni", "asimd", "sve", "bf16", "asimddp")
_FILE_BYTES = 64 * MIB
_LEAST_FREE = 32 * MIB
_DISK_S = 1.0
_SLOW_DISK = 100e6
_FIRST_YEAR = 2025


def check_processor() -> Sequence[Finding]:
    """Features, cores, quota."""
    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    usable = usable_cores()
    quotas = Cgroups.own().cpu_quotas()
    cores = f"{physical} physical, {usable:g} usable, {counted(default_threads(), 'thread')} by default"
    findings = [judge_features(platform.machine(), _features())]
    if quotas and min(quotas) < 1:
        advice = "raise the container's CPU quota (docker: --cpus): every node waits for the slowest"
        return [*findings, warn("cores", f"{cores}, a quota of {min(quotas):.2g}", advice)]
    return [*findings, ok("cores", cores)]


def judge_features(machine: str, features: frozenset[str]) -> Finding:
    name = cpu_name()
    known = [feature for feature in (*_WANTED, *_ALSO) if feature in features]
    found = f"{name} ({', '.join(known)})" if known else name
    if machine in _X86 and features and not features.issuperset(_WANTED):
        return warn("processor", f"{found}: no AVX2", "expect portable kernels, several times slower")
    return ok("processor", found)


def check_memory() -> Sequence[Finding]:
    """What is free within every limit, and swap."""
    swap = psutil.swap_memory()
    limits = Cgroups.own().memory_room()
    free = psutil.virtual_memory().available
    return [
        judge_memory(available_memory_bytes(), free, min(limits, default=None)),
        judge_swap(swap.total, swap.used),
        judge_address_space(address_limit()),
    ]


def judge_memory(available: int, free: int, room: int | None) -> Finding:
    """`room`: what a control group leaves; None without a limit."""
    found = f"{format_bytes(available)} can be taken"
    if room is not None and room < free:
        found += f" (a limit on this process; the computer has {format_bytes(free)})"
    if available < 256 * MIB:
        return fail("memory", found, "end other programs or raise the limit: torch alone takes 250 MB")
    if available < GIB:
        return warn("memory", found, "end other programs, or give this node a small --memory")
    return ok("memory", found)


def judge_swap(total: int, used: int) -> Finding:
    if not total:
        return ok("swap", "none")
    found = f"{format_bytes(used)} of {format_bytes(total)} used"
    if used > total // 2:
        return warn("swap", found, "memory is short: end other programs, swapped weights are slow")
    return ok("swap", found)


def judge_address_space(limit: int | None) -> Finding:
    """`limit`: bytes that a process may map; None without one."""
    if limit is None:
        return ok("address space", "no limit")
    verdict = fail if limit < LEAST_TO_COMPUTE else warn
    found = f"a process may map {format_bytes(limit)}"
    return verdict(
        "address space", found, "lift the limit (ulimit -v unlimited): most of what is mapped takes no memory"
    )


def check_disk(cache: Path) -> Sequence[Finding]:
    """Room and speed where packs and shards are kept, measured with a file of at most 64 MiB without a name."""
    folder = cache
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    free = free_disk_bytes(folder)
    try:
        speed = measure_disk(folder, _DISK_S, min(_FILE_BYTES, free // 4)) if free > _LEAST_FREE else None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            lacking = "has no inodes left (df -i)" if DiskFull.of_inodes(folder) else "is full"
            return [fail("disk", f"{folder} {lacking}", "delete files there, or choose another --cache")]
        return [fail("disk", f"{folder}: {error.strerror}", "choose a --cache that can be written")]
    return [judge_disk(folder, free, speed)]


def judge_disk(folder: Path, free: int, speed: DiskSpeed | None) -> Finding:
    """`speed` is None where there was no room to measure."""
    found = f"{format_bytes(free)} free in {folder}"
    if speed is not None:
        how = "" if speed.is_direct else " through the page cache (no O_DIRECT)"
        found += f", reads {format_bytes(speed.bytes_per_s)}/s{how}"
    if free < 256 * MIB:
        return fail("disk", found, "free some space, or choose another --cache")
    if free < 5 * GIB:
        return warn("disk", found, "room for small models only: free some space, or choose another --cache")
    if speed is not None and speed.bytes_per_s < _SLOW_DISK:
        return warn(
            "disk", found, "weights that do not stay in memory will be slow: prefer an SSD for --cache"
        )
    return ok("disk", found)


def check_clock() -> Sequence[Finding]:
    """Whether the date is possible: tokens expire, and certificates of the hub are checked."""
    return [judge_clock(datetime.now(UTC))]


def judge_clock(now: datetime) -> Finding:
    found = f"{now:%Y-%m-%d %H:%M} UTC"
    if now.year < _FIRST_YEAR:
        return fail("clock", found, "set the clock (timedatectl set-ntp true): tokens would not be valid")
    return ok("clock", f"{found}; only a master's is compared, with --connect")


def _features() -> frozenset[str]:
    """The processor's features as Linux names them; empty elsewhere."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return frozenset(line.partition(":")[2].split())
    except OSError:
        pass  # no /proc: the kernels ask the processor themselves
    return frozenset()
