"""What malloc keeps of the memory that was freed, and how it goes back to the system.

C libraries other than glibc go on as they do.
"""

import ctypes
import math

# Of mallopt in <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES, _TRIM_BYTES = 128 << 10, 1 << 20
#: A look at the heaps takes a millisecond, and what is used again a page fault for every 4 KiB.
_EVERY_S = 10.0


def give_back_what_is_freed() -> None:
    """From now on a block of 128 KiB or more goes back to the system when it is freed, and so does the end of the heap
    where more than 1 MiB of it is free.

    glibc raises that bound up to 32 MiB when it sees such blocks freed, and keeps twice as much: among eight nodes of
    rows 8192 wide, whose messages are that large, 65 MB. Page faults are the price, an eighth of a prompt's time where
    all weights are in memory.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        library.malloc_trim(0)


class FreedMemory:
    """Gives back whatever is free in the heaps of all threads, now and then: for a process that serves strangers.

    glibc has a heap for each of many threads, and gives back no more than its end: one block that is still used keeps
    all that was freed before it. After floods of small messages a master's had 68 MB free beside 18 in use.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._due = -math.inf

    def give_back(self, now: float) -> None:
        """To be called often. Seconds of any clock."""
        if self._trim is not None and now >= self._due:
            self._due = now + _EVERY_S
            self._trim(0)
