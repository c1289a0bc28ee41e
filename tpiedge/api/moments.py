"""How much time passed, whatever was done to the clock between two masters.

Laws:

1. Within one boot of the computer the time since that boot counts, which nobody sets and which goes on in its sleep.
2. Of what passed between two boots the time of day tells, which may be wrong before and right after, or the other way
   round: ACROSS_BOOTS_S of it count at most, and nothing where it went back.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ACROSS_BOOTS_S: Final = 12 * 3600.0
"""So a record that is to be kept for days outlives several boots with a wrong clock, and ends at last on a computer
that is started every day."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Moment:
    """`boot` names the boot, empty where the system does not; `up_s`: seconds since it; `day_s`: since 1970, as the
    clock said."""

    boot: str
    up_s: float
    day_s: float

    def since(self, earlier: "Moment") -> float:
        """Seconds from `earlier` until this one, as far as they are certain."""
        if self.boot and self.boot == earlier.boot:
            return max(0.0, self.up_s - earlier.up_s)
        return min(max(0.0, self.day_s - earlier.day_s), ACROSS_BOOTS_S)


def this_moment() -> Moment:
    """Reads the clocks."""
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return Moment(boot, time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
