"""python -m tests.simulation FIRST LAST: plays stories by seed, and shows the shortest one that fails."""

import sys
import time

from tests.simulation.stories import check

if __name__ == "__main__":
    first, last = map(int, sys.argv[1:])
    begun = time.monotonic()
    for seed in range(first, last):
        check(seed)
    print(f"{last - first} stories in {time.monotonic() - begun:.0f} s broke no law")  # noqa: T201
