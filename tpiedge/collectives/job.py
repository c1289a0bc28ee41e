"""One all-reduce under way, by which collective it goes, and the interface of what carries it out."""

from dataclasses import dataclass, field
from typing import Protocol

from tpiedge.collectives.arrays import Summable
from tpiedge.collectives.codec import AnyCodec, Shape
from tpiedge.collectives.communicator import Doing, Tag
from tpiedge.wire.fields import CollectiveName, WirePrecision


@dataclass(frozen=True, slots=True)
class Route:
    """All-reduces of at most `small_bytes` (as f32) go by `small`, larger ones by `bulk`; parts travel as `wire`."""

    small: CollectiveName = "star"
    bulk: CollectiveName = "star"
    small_bytes: int = 0
    wire: WirePrecision = "f32"


@dataclass(slots=True)
class Job:
    """`own` is this rank's part, not rounded yet, None where it has none; it must not change before the job is done.
    `codec` says whether all parts are of f32 or of integers, some of which may be wide.

    `cancel`: on rank 0, from the beginning on, whether the flag is to be sent; elsewhere and in the end whether it was.
    `sent`: to how many peers, in their order, this rank's first message (or, at the root of a star, its answer, which
    is `total` then) has gone already. `total`: the sum, or what of it is known so far.
    """

    tag: Tag
    shape: Shape
    own: Summable | None
    codec: AnyCodec
    cancel: bool = False
    sent: int = 0
    total: Summable | None = None
    advanced: bool = False
    what: Doing = field(init=False)

    def __post_init__(self) -> None:
        self.what = Doing("all-reduce", self.tag)


class Collective(Protocol):
    """One way to sum. Every rank calls the same methods in the same order; each raises PeerLost, ProtocolError."""

    def begin(self, job: Job) -> None:
        """Send what needs no other rank's part."""
        ...

    def advance(self, job: Job) -> None:
        """Wait for what others sent in `begin`, and send what follows from it. Once for every job."""
        ...

    def finish(self, job: Job) -> Summable:
        """The sum, in memory that belongs to the caller; `job.cancel` holds for every rank."""
        ...
