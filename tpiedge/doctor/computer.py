"""Runs checks in parallel within a deadline, and checks machine and software."""

import errno
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

import psutil

from tpiedge.errors import DiskFull
from tpiedge.host import device
from tpiedge.host.disk_speed import DiskSpeed, measure_disk
from tpiedge.host.process import LEAST_TO_COMPUTE, address_limit, cpu_name, proc_field
from tpiedge.transport.keys import zeromq_versions
from tpiedge.units import GIB, MIB, counted, format_bytes

CheckResult = Literal["skip", "ok", "warn", "fail"]

#: A program for a process of its own, because the system kills a build of torch for another processor.
_ARITHMETIC = """
import json, torch
from tpiedge.kernels.shared_library import kernel_library
library = kernel_library()
print(json.dumps({"torch": torch.__version__, "isa": library.isa if library else None}))
"""


@dataclass(frozen=True)
class Finding:
    check: str
    found: str
    advice: str = ""
    result: CheckResult = "ok"


Check = Callable[[], Sequence[Finding]]
skip = partial(Finding, result="skip")
ok = partial(Finding, result="ok")
warn = partial(Finding, result="warn")
fail = partial(Finding, result="fail")


def examine(checks: Mapping[str, Check], limit_s: float) -> list[Finding]:
    """Runs checks in parallel. Returns findings in order. A check without an answer by `limit_s` gives a warning."""
    found: dict[str, Sequence[Finding]] = {}

    def run(name: str, check: Check) -> None:
        try:
            found[name] = check()
        except Exception as error:  # a check that fails is a finding
            found[name] = [warn(name, f"unknown: {type(error).__name__}: {error}", "check it yourself")]

    threads = [threading.Thread(target=run, args=check, daemon=True) for check in checks.items()]
    deadline = time.monotonic() + limit_s  # a check may hang on a dead file system
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    silence = f"no answer within {limit_s:g} s"
    for name in checks:
        found.setdefault(name, [warn(name, silence, "try again when the computer is idle")])
    return [finding for name in checks for finding in found[name]]


def check_processor() -> Sequence[Finding]:
    physical = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    quotas = device.Cgroups.own().cpu_quotas()
    threads = counted(device.default_threads(), "thread")
    cores = f"{physical} physical, {device.usable_cores():g} usable, {threads} by default"
    flags = proc_field(
        "/proc/cpuinfo", "flags", "Features"
    )  # "" without /proc: the kernels ask the processor
    features = features_finding(platform.machine(), frozenset(flags.split()))
    if quotas and min(quotas) < 1:
        advice = "raise the container's CPU quota (docker: --cpus): every node waits for the slowest"
        return [features, warn("cores", f"{cores}, a quota of {min(quotas):.2g}", advice)]
    return [features, ok("cores", cores)]


def features_finding(machine: str, features: frozenset[str]) -> Finding:
    wanted = ("avx2", "fma")
    also = ("avx512f", "avx512_bf16", "amx_bf16", "avx_vnni", "asimd", "sve", "bf16", "asimddp")
    known = [feature for feature in (*wanted, *also) if feature in features]
    found = f"{cpu_name()} ({', '.join(known)})" if known else cpu_name()
    if machine in ("x86_64", "AMD64") and features and not features.issuperset(wanted):
        return warn("processor", f"{found}: no AVX2", "expect portable kernels, several times slower")
    return ok("processor", found)


def check_memory() -> Sequence[Finding]:
    swap, free = psutil.swap_memory(), psutil.virtual_memory().available
    room = min(device.Cgroups.own().memory_room(), default=None)
    memory = memory_finding(device.available_memory_bytes(), free, room)
    return [memory, swap_finding(swap.total, swap.used), address_space_finding(address_limit())]


def memory_finding(available: int, free: int, room: int | None) -> Finding:
    """Warns if `available` bytes are few. `room`: the bytes left in the control group, or None."""
    found = f"{format_bytes(available)} available"
    if room is not None and room < free:
        found += f" (a limit on this process; the computer has {format_bytes(free)})"
    if available < 256 * MIB:
        return fail("memory", found, "end other programs or raise the limit: torch alone takes 250 MB")
    if available < GIB:
        return warn("memory", found, "end other programs, or give this node a small --memory")
    return ok("memory", found)


def swap_finding(total: int, used: int) -> Finding:
    if not total:
        return ok("swap", "none")
    found = f"{format_bytes(used)} of {format_bytes(total)} used"
    if used > total // 2:
        return warn("swap", found, "memory is short: end other programs, swapped weights are slow")
    return ok("swap", found)


def address_space_finding(limit: int | None) -> Finding:
    if limit is None:
        return ok("address space", "no limit")
    finding = fail if limit < LEAST_TO_COMPUTE else warn
    advice = "lift the limit (ulimit -v unlimited): most of what is mapped takes no memory"
    return finding("address space", f"a process may map {format_bytes(limit)}", advice)


def check_disk(cache: Path, most_bytes: int = 64 * MIB) -> Sequence[Finding]:
    folder = cache
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    free = device.free_disk_bytes(folder)
    try:
        speed = measure_disk(folder, 1.0, min(most_bytes, free // 4)) if free > 32 * MIB else None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            lacking = "has no inodes left (df -i)" if DiskFull.of_inodes(folder) else "is full"
            return [fail("disk", f"{folder} {lacking}", "delete files there, or choose another --cache")]
        return [fail("disk", f"{folder}: {error.strerror}", "choose a --cache that can be written")]
    return [disk_finding(folder, free, speed)]


def disk_finding(folder: Path, free: int, speed: DiskSpeed | None) -> Finding:
    found = f"{format_bytes(free)} free in {folder}"
    if speed is not None:
        how = "" if speed.is_direct else " through the page cache (no O_DIRECT)"
        found += f", reads {format_bytes(speed.bytes_per_s)}/s{how}"
    if free < 256 * MIB:
        return fail("disk", found, "free some space, or choose another --cache")
    if free < 5 * GIB:
        return warn("disk", found, "room for small models only: free some space, or choose another --cache")
    if speed is not None and speed.bytes_per_s < 100e6:
        advice = "weights that do not stay in memory will be slow: prefer an SSD for --cache"
        return warn("disk", found, advice)
    return ok("disk", found)


def check_clock(now: datetime | None = None) -> Sequence[Finding]:
    """Checks the year, because tokens and certificates depend on it."""
    now = now or datetime.now(UTC)
    found = f"{now:%Y-%m-%d %H:%M} UTC"
    if now.year < 2025:
        advice = "set the clock (timedatectl set-ntp true): tokens would not be valid"
        return [fail("clock", found, advice)]
    return [ok("clock", f"{found}; only a master's is compared, with --connect")]


def check_python() -> Sequence[Finding]:
    return [ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")]


def check_links() -> Sequence[Finding]:
    versions, can_encrypt = zeromq_versions()
    if can_encrypt:
        return [ok("encryption", f"{versions}, CURVE")]
    advice = "install pyzmq's own wheel (pip install --force-reinstall pyzmq): this libzmq lacks libsodium"
    return [fail("encryption", f"{versions}, without CURVE", advice)]


def check_arithmetic(limit_s: float) -> Sequence[Finding]:
    # -P: a folder named torch in the user's working directory must not be imported.
    command = [sys.executable, "-P", "-c", _ARITHMETIC]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return [warn("torch", f"not loaded within {limit_s:g} s", "a node starts as slowly: check the disk")]
    switch = os.environ.get("TPIEDGE_NATIVE", "")
    return arithmetic_findings(ended.returncode, ended.stdout, ended.stderr, switch)


def arithmetic_findings(status: int, out: str, err: str, wanted: str) -> Sequence[Finding]:
    if status < 0:
        name = signal.Signals(-status).name
        advice = "install a build of torch for this processor (or free memory, if it was SIGKILL)"
        return [fail("torch", f"loading it was ended by {name}", advice)]
    if status:
        last = (err.strip().splitlines() or ["no message"])[-1]
        return [fail("torch", last[:200], "install tpiedge again: pip install tpiedge")]
    record = json.loads(out)
    kernels = ok("kernels", f"native, {record['isa']}")
    if record["isa"] is None:
        lack = "no q8 and q4, and f32 and bf16 are slower"
        advice = "install a C++ compiler and type 'make setup', or install a wheel of tpiedge"
        kernels = warn("kernels", f"not built: {lack}", advice)
        if wanted == "0":
            kernels = warn("kernels", f"switched off: {lack}", "unset TPIEDGE_NATIVE")
    return [ok("torch", record["torch"]), kernels]
