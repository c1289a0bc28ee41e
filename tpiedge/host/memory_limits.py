"""How much memory tpiedge may use on this machine, and whether that has changed since it began.

What other programs take changes from minute to minute, and a plan cannot follow it. So what they had at the start
counts as theirs, and afterwards only limits are looked at: those of the control groups, and how much the machine has.
"""

import contextlib
from pathlib import Path
from typing import Final

import psutil

from tpiedge.host.cgroups import Cgroups
from tpiedge.host.device import default_memory_bytes
from tpiedge.host.process_limits import address_room
from tpiedge.units import format_bytes

#: What sets the limit that is all the memory there is.
_MACHINE: Final = Path("/")


class MemoryLimits:
    """Reads the limits of this process's groups and its ancestors' at each `usable_bytes`, which takes no lock and
    about a millisecond. A group that it came to later counts as empty."""

    def __init__(self, asked_bytes: int | None = None, root: Path = Path("/")) -> None:
        """`asked_bytes` is what the user gave to tpiedge; None: what is usual."""
        memory = psutil.virtual_memory()
        self._asked_bytes = asked_bytes
        self._root = root
        self._addresses = address_room()
        self._total = memory.total
        self._taken = {**Cgroups.own(root).memory_taken(), _MACHINE: memory.total - memory.available}

    def shortfall(self, usable: int) -> str:
        """The line for the user where less is usable than was asked for; otherwise ""."""
        if self._asked_bytes is None or usable >= self._asked_bytes:
            return ""
        asked, most = format_bytes(self._asked_bytes), format_bytes(usable)
        return f"--memory gives {asked}, but the limit of this machine or of its control group is {most}"

    def usable_bytes(self) -> int:
        """What the user gave, but no more than the smallest limit; or the usual part of what others left below it."""
        limits = {**Cgroups.own(self._root).memory_limits(), _MACHINE: self._machine_bytes()}
        if self._asked_bytes is not None:
            return min(self._asked_bytes, *limits.values())
        rooms = [limit - self._taken.get(place, 0) for place, limit in limits.items()]
        return default_memory_bytes(
            max(0, min([*rooms, *([] if self._addresses is None else [self._addresses])]))
        )

    def _machine_bytes(self) -> int:
        """As it was at the last look where the system has no descriptor left for another one."""
        with contextlib.suppress(OSError):
            self._total = psutil.virtual_memory().total
        return self._total
