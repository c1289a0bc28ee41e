"""What a plan says of each machine, and what its node is told of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpiedge.nodes.timing import Timing
from tpiedge.pack.share import NodeShare
from tpiedge.wire.control import Assign
from tpiedge.wire.epochs import Prepare
from tpiedge.wire.fields import Choice, Compute, KVPrecision, WirePrecision
from tpiedge.wire.weights import ALL_PINNED, WeightMemory

__all__ = ["Arrangement", "Fetching", "Seat", "Served"]


@dataclass(frozen=True)
class Seat:
    """What one machine does in a plan; its rank is its place in the plan. `machine` is "" for the master's own.
    `weight_bytes` are those kept in memory, `weights` says how.

    `why` is a sentence for the user, `host` the name that the user knows the machine by, as far as it is known. What
    the machine gives: `memory_bytes`, and `speed` in bytes per second of weights such as the model's.
    """

    machine: str
    share: NodeShare
    threads: int
    weight_bytes: int
    why: str = field(compare=False)
    weights: WeightMemory = ALL_PINNED
    host: str = field(default="", compare=False)
    memory_bytes: int = field(default=0, compare=False)
    speed: float = field(default=0.0, compare=False)
    #: What the plan lets the node grow to, with the process that starts it.
    planned_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Arrangement:
    """Who does what, rank 0 first, and why the other machines have no part."""

    seats: tuple[Seat, ...]
    spare: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Fetching:
    """How far a worker's fetching is."""

    done_bytes: int
    total_bytes: int
    bytes_per_s: float

    @property
    def remaining_s(self) -> float:
        return (self.total_bytes - self.done_bytes) / max(self.bytes_per_s, 1.0)


@dataclass(frozen=True)
class Served:
    """What every epoch serves."""

    pack: Path
    pack_id: str
    compute: Compute
    capacity_tokens: int
    collective: Choice = "auto"
    wire: WirePrecision = "f32"
    kv: KVPrecision = "f32"

    @property
    def quantised(self) -> bool:
        """Whether the layers' weights are quantised: those are computed with in int8, and no others."""
        return self.compute == "int8"

    def prepare(self, epoch: int, seats: tuple[Seat, ...], rank: int, timing: Timing) -> Prepare:
        """What the worker of `rank` is asked to have ready."""
        seat = seats[rank]
        return Prepare(
            epoch=epoch,
            rank=rank,
            ranks=len(seats),
            pack=self.pack_id,
            attention=(seat.share.attention.start, seat.share.attention.stop),
            ffn=(seat.share.ffn.start, seat.share.ffn.stop),
            compute=self.compute,
            threads=seat.threads,
            capacity_tokens=self.capacity_tokens,
            planned_bytes=seat.planned_bytes,
            heartbeat_s=timing.heartbeat_s,
            timeout_s=timing.timeout_s,
            stall_s=timing.stall_s,
        )

    def assign(
        self,
        epoch: int,
        seats: tuple[Seat, ...],
        rank: int,
        keys: Mapping[int, str],
    ) -> Assign:
        """What the node of `rank` is told; `keys` are those of all nodes by rank."""
        seat = seats[rank]
        return Assign(
            epoch=epoch,
            rank=rank,
            nodes=tuple(range(len(seats))),
            attention=(seat.share.attention.start, seat.share.attention.stop),
            ffn=(seat.share.ffn.start, seat.share.ffn.stop),
            pack=str(self.pack) if rank == 0 else "",
            compute=self.compute,
            threads=seat.threads,
            capacity_tokens=self.capacity_tokens,
            slots=1,
            peer_keys=tuple(sorted(keys.items())),
            weights=seat.weights,
            collective=self.collective,
            wire=self.wire,
            kv=self.kv,
        )
