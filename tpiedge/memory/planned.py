"""From what the plan says of a node's weights to where they are kept."""

from tpiedge.errors import OutOfMemory
from tpiedge.memory.pinning import Placement, TooSmall, place
from tpiedge.memory.sweep import Sweep
from tpiedge.units import format_bytes
from tpiedge.wire.weights import WeightMemory


def placed(memory: WeightMemory, sweep: Sweep) -> Placement:
    """Raises OutOfMemory where the plan gave less than the smallest that works."""
    room = memory.nbytes or sweep.nbytes
    found = place(sweep.sizes, room, memory.pin, memory.ring_bytes or None)
    if isinstance(found, TooSmall):
        least = format_bytes(found.smallest_bytes)
        raise OutOfMemory(
            f"{format_bytes(room)} are too little for the weights: {least} is the least that works"
        )
    return found


def elastic_bytes(memory: WeightMemory, kv_bytes: int) -> int:
    """What the weights may use of a KV cache of `kv_bytes` while it is empty: nothing where nothing is to be pinned
    but what was planned."""
    return kv_bytes if memory.pin == "auto" else 0
