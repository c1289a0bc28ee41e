"""How much a process may map (RLIMIT_AS): memory, and addresses of which most are never used. Children inherit that."""

import contextlib
import resource
from typing import Final

from tpiedge.errors import ResourceError
from tpiedge.units import GIB, MIB, format_bytes

#: What a command maps before it has read its own words; numpy's libraries end a process that gets less.
LEAST: Final = 512 * MIB
#: What a node maps beside its weights and its keys and values, and a master: libraries, and a stack and a pool of
#: memory for each thread.
_OVERHEAD: Final = GIB
LEAST_TO_COMPUTE: Final = 2 * GIB


def raise_address_limit() -> None:
    """Raises this process's limit as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # the system has the last word
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def address_limit() -> int | None:
    """Bytes that this process may map; None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def address_room() -> int | None:
    """Bytes that a node may take for what it computes with; None without a limit."""
    limit = address_limit()
    return None if limit is None else max(0, limit - _OVERHEAD)


def check_address_space(least: int) -> None:
    """Raises ResourceError where this process may map less than `least` bytes."""
    limit = address_limit()
    if limit is not None and limit < least:
        raise ResourceError(
            f"this process may map {format_bytes(limit)} of addresses, and needs {format_bytes(least)}: lift the limit "
            "(ulimit -v unlimited; a service: LimitAS=infinity), and limit memory by a control group (MemoryMax=) or "
            "--memory"
        )
