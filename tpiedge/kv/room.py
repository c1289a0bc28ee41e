"""How many positions of each sequence the KV cache keeps memory for: a pure ledger.

Memory is taken and given back by whole grains, because weights that are streamed make room for it, or fill what is
free. It is given back when a sequence needs at least two grains less, so that texts of nearly the same length that take
turns do not move weights each time.
"""

__all__ = ["KVRoom"]


class KVRoom:
    """Counts for `slots` sequences of up to `capacity` positions, by `grain` positions at a time."""

    def __init__(self, slots: int, capacity: int, grain: int) -> None:
        self._held = [0] * slots
        self._capacity = capacity
        self._grain = min(max(1, grain), capacity)

    @property
    def held(self) -> tuple[int, ...]:
        """Positions of each slot whose memory may be in use."""
        return tuple(self._held)

    def ask(self, slot: int, stop: int, reach: int) -> range:
        """Positions below `stop` are written next, and those below `reach` before long. Returns the positions whose
        memory is not kept any more."""
        before = self._held[slot]
        enough = self._whole(max(stop, reach))
        if before >= enough + 2 * self._grain:
            self._held[slot] = enough
            return range(enough, before)
        self._held[slot] = max(before, self._whole(stop))
        return range(0)

    def _whole(self, positions: int) -> int:
        grains = -(-positions // self._grain)
        return min(grains * self._grain, self._capacity)
