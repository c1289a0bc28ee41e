"""How many files and connections a process may have open at a time (RLIMIT_NOFILE); its children inherit that."""

import contextlib
import resource
import sys
from typing import Final

from tpiedge.errors import ResourceError

#: A master with a worker needs some seventy, and more for each further one; crowds of strangers may hold half of all at
#: its HTTP port (api/limits.py) and 128 at each of three others (transport/backlog.py).
LEAST: Final = 1024
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
    if soft < LEAST:
        raise ResourceError(
            f"this process may open {soft} files and connections at a time, and needs {LEAST}: raise the limit "
            "(ulimit -n 4096; a service: LimitNOFILE=4096)"
        )
    return soft
