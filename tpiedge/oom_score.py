"""Which process the system's OOM killer ends first."""

from contextlib import suppress
from pathlib import Path
from typing import Final

#: Of 1000: as if the process took so much more of the memory that there is, or of the control group's limit.
BEFORE_OTHERS: Final = 500
ALWAYS_FIRST: Final = 1000


_OWN = Path("/proc/self/oom_score_adj")


def raise_to(score: int) -> None:
    """For this process and those that it starts from now on, unless its score is higher. On Linux; elsewhere, and where
    the system does not allow it, there is no effect."""
    with suppress(OSError):
        if int(_OWN.read_text(encoding="ascii")) < score:
            _OWN.write_text(str(score), encoding="ascii")
