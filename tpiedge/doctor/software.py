"""Checks of what is installed: the interpreter, ZeroMQ with encryption, torch and the native kernels."""

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence

from tpiedge.doctor.finding import Finding, fail, ok, warn
from tpiedge.transport.keys import curve_available, zeromq_versions

_OLDEST = (3, 11)


def check_python() -> Sequence[Finding]:
    version = platform.python_version()
    if sys.version_info < _OLDEST:
        return [fail("python", version, "install Python 3.11 or newer")]
    return [ok("python", f"{version} on {platform.system()} {platform.machine()}")]


def check_links() -> Sequence[Finding]:
    """ZeroMQ and its encryption."""
    versions = zeromq_versions()
    if not curve_available():
        advice = (
            "install pyzmq's own wheel (pip install --force-reinstall pyzmq): this libzmq lacks libsodium"
        )
        return [fail("encryption", f"{versions}, without CURVE", advice)]
    return [ok("encryption", f"{versions}, CURVE")]


def check_arithmetic(limit_s: float) -> Sequence[Finding]:
    """torch and the kernels, loaded in a process that may die of them."""
    try:
        ended = subprocess.run(
            # -P: a folder named torch in the user's working directory must not be imported.
            [sys.executable, "-P", "-m", "tpiedge.doctor.arithmetic"],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return [warn("torch", f"not loaded within {limit_s:g} s", "a node starts as slowly: check the disk")]
    return judge_arithmetic(
        ended.returncode, ended.stdout, ended.stderr, os.environ.get("TPIEDGE_NATIVE", "")
    )


def judge_arithmetic(status: int, out: str, err: str, wanted: str) -> Sequence[Finding]:
    """What the end of that process means. `wanted`: TPIEDGE_NATIVE."""
    if status < 0:
        name = signal.Signals(-status).name
        advice = "install a build of torch for this processor (or free memory, if it was SIGKILL)"
        return [fail("torch", f"loading it was ended by {name}", advice)]
    if status:
        last = (err.strip().splitlines() or ["no message"])[-1]
        return [fail("torch", last[:200], "install tpiedge again: pip install tpiedge")]
    record = json.loads(out)
    return [ok("torch", record["torch"]), _kernels(record["isa"], wanted)]


def _kernels(isa: str | None, wanted: str) -> Finding:
    if isa is not None:
        return ok("kernels", f"native, {isa}")
    lack = "no q8 and q4, and f32 and bf16 are slower"
    if wanted == "0":
        return warn("kernels", f"switched off: {lack}", "unset TPIEDGE_NATIVE")
    advice = "install a C++ compiler and type 'make setup', or install a wheel of tpiedge"
    return warn("kernels", f"not built: {lack}", advice)
