"""What an endpoint may offer besides `Endpoint`: an all-reduce in one call, for the steady state.

Right after a wake-up every call of Python costs several times the usual, so an endpoint that can sends, receives and
adds in one go. It does so only while all goes as foreseen; in any other case it leaves off without having lost
anything, and the caller goes on step by step: what was received and not used comes out of `recv_frame` next.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol, runtime_checkable

from tpiedge.wire.tensors import SummandPrecision

DONE: Final = -1


class Combine(IntEnum):
    """What this endpoint does. A sum of f32 is checked: one that is not finite is left to the caller."""

    TAKE = 0
    """Send the own part, replace it by what comes."""
    EXCHANGE = 1
    """Send the own part to all, wait for theirs, add all in the order of ranks, round the sum as all do."""
    SUM = 2
    """Wait for the parts of all, add them in the order of `answers`, send the sum to all."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """All that the all-reduces of one shape have in common."""

    combine: Combine
    rank: int
    """The rank of this endpoint: its part has this place in the order of summation (SUM: 0)."""
    precision: SummandPrecision
    """How tensors travel, and therefore how every part is rounded, the own one too, and then the sum. i32: tensors are
    of int32, and their sums wrap around."""
    shape: tuple[int, int]
    header: bytes
    """The header of the frame that is sent."""
    answers: Mapping[str, bytes]
    """The header that each peer's frame should have; in the order of ranks."""
    place_at: int
    """Where every header has the bytes that change, at the beginning of a call, for `place`."""
    place_bytes: int
    scratch: bytearray
    """For a tensor of f32 or int32. Overwritten, also in calls that leave off."""


Reduce = Callable[[bytes, int], int]
"""`reduce(place, tensor)`: the all-reduce of the contiguous tensor (f32, or int32 where these travel) at this address,
in place. DONE.

Otherwise the tensor is as it was, and the result says to how many peers, in their order, this rank's frame went. With
Combine.SUM that frame has the sum, which is then in `scratch`, not rounded yet; where it went to no peer, the parts are
yet to be received. Raises nothing: whatever is wrong shows when the caller goes on.
"""


@runtime_checkable
class Reduces(Protocol):
    """An endpoint that can."""

    def reducer(self, exchange: Exchange) -> Reduce | None:
        """None where it cannot here and now, or where it would be of no use."""
        ...
