"""How a node holds its weights, in messages of several kinds."""

from tpiedge.wire.fields import U32, U64, Pin, Wire


class WeightMemory(Wire, frozen=True):
    """How a node holds its weights: all of them, or within `nbytes` of memory, of which `ring_bytes` are what the
    streamed ones pass through (0: the node chooses). `direct`: read past the page cache."""

    nbytes: U64
    ring_bytes: U64
    pin: Pin
    direct: bool


class Keeping(Wire, frozen=True):
    """What the user of a machine wants of its weights: how many are pinned, the ring in blocks (of the largest size) or
    in bytes (0: whatever is best), and whether reads go past the page cache."""

    pin: Pin = "auto"
    window_blocks: U32 = 0
    window_bytes: U64 = 0
    direct: bool = True


#: Everything stays in memory.
ALL_PINNED = WeightMemory(0, 0, "all", True)
