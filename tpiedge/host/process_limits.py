"""How much a process may map (RLIMIT_AS), and open (RLIMIT_NOFILE). Children inherit these limits."""

import contextlib
import resource
import sys
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


#: A master with a worker needs some seventy, and more for each further one; crowds of strangers may hold half of all at
#: its HTTP port (api/limits.py) and 128 at each of three others (transport/backlog.py).
LEAST_DESCRIPTORS: Final = 1024
#: Ample, and what macOS grants a process. Not all that a system allows: some programs close that many at their start.
_WANTED: Final = 10_240


def raise_descriptor_limit() -> None:
    """Raises this process's limit as far as it may and is of use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # the system has the last word
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_descriptors() -> int:
    """The limit. Raises ResourceError where that is too low to serve or to compute."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    if soft < LEAST_DESCRIPTORS:
        raise ResourceError(
            f"this process may open {soft} files and connections at a time, and needs {LEAST_DESCRIPTORS}: raise the "
            "limit (ulimit -n 4096; a service: LimitNOFILE=4096)"
        )
    return soft
