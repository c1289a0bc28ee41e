"""How many pages of the KV cache keep memory where weights that are streamed could use it: a pure ledger.

Memory is taken and given back by whole grains, because weights make room for it, or fill what is free. It is given back
when at least two grains less are needed, so that texts of nearly the same length that take turns do not move weights
each time.
"""

_GRAINS = 16
_GRAIN_BYTES = 4 << 20


def usual_grain(pages: int, page_bytes: int) -> int:
    """A sixteenth of the cache, or 4 MiB where that is more, in pages."""
    return max(1, pages // _GRAINS, _GRAIN_BYTES // max(1, page_bytes))


class KVRoom:
    """Counts for a cache of `pages` pages, by `grain` pages at a time; both are one at least."""

    def __init__(self, pages: int, grain: int) -> None:
        self._held = 0
        self._pages = pages
        self._grain = min(grain, pages)

    def ask(self, needed: int) -> int:
        """Sequences need so many pages now. Returns how many may keep memory, with theirs."""
        enough = min(-(-needed // self._grain) * self._grain, self._pages)
        if not enough <= self._held < enough + 2 * self._grain:
            self._held = enough
        return self._held
