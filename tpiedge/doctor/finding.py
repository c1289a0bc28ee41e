"""What a check found, and the checks run side by side within a deadline."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

CheckResult = Literal["skip", "ok", "warn", "fail"]
"""From good to bad. "skip": there was nothing to look at."""


@dataclass(frozen=True)
class Finding:
    """`advice` says what to do; empty where all is well."""

    check: str
    verdict: CheckResult
    found: str
    advice: str = ""


Check = Callable[[], Sequence[Finding]]


def skip(check: str, found: str) -> Finding:
    return Finding(check, "skip", found)


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warn(check: str, found: str, advice: str) -> Finding:
    """It works, but badly, or might not."""
    return Finding(check, "warn", found, advice)


def fail(check: str, found: str, advice: str) -> Finding:
    """tpiedge cannot work like this."""
    return Finding(check, "fail", found, advice)


def examine(checks: Mapping[str, Check], limit_s: float) -> list[Finding]:
    """Every finding, in the order of `checks`. A check that takes longer than `limit_s` is left behind, which is said.

    Each runs in a thread of its own that does not keep the process alive: a dead network file system never answers.
    """
    found: dict[str, Sequence[Finding]] = {}
    threads = [
        threading.Thread(target=_run, args=(name, check, found), name=f"doctor-{name}", daemon=True)
        for name, check in checks.items()
    ]
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    silence = f"no answer within {limit_s:g} s"
    slow = {name: [warn(name, silence, "try again when the computer is idle")] for name in checks}
    return [finding for name in checks for finding in dict(found).get(name, slow[name])]


def _run(name: str, check: Check, found: dict[str, Sequence[Finding]]) -> None:
    try:
        found[name] = check()
    except Exception as error:  # a check that breaks is a finding, not the end of the others
        found[name] = [warn(name, f"cannot be told: {type(error).__name__}: {error}", "look yourself")]
