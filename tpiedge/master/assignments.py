"""A plan as the master keeps it: one assignment per machine, and the messages that are made from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpiedge.launch.bootstrap import Timing
from tpiedge.pack.grids import Exponents
from tpiedge.pack.share import NodeShare
from tpiedge.planner.capacity import SpareReason
from tpiedge.wire.control import Assign, Carried
from tpiedge.wire.epochs import Prepare
from tpiedge.wire.fields import (
    ALL_PINNED,
    CollectiveChoice,
    Compute,
    KVPrecision,
    UnitRange,
    WeightMemory,
    WirePrecision,
)


@dataclass(frozen=True)
class Assignment:
    """What one machine does in a plan; its rank is its place in the plan. `machine` is "" for the master's own.
    `weight_bytes` counts the weights kept in memory, `weights` says how they are kept. `why` is a sentence for the
    user, `host` the machine's name as the user knows it, "" if unknown. Its `speed` is in bytes per second of weights
    stored as the model's are."""

    machine: str
    share: NodeShare
    threads: int
    weight_bytes: int
    why: str = field(compare=False)
    weights: WeightMemory = ALL_PINNED
    host: str = field(default="", compare=False)
    speed: float = field(default=0.0, compare=False)
    #: Seconds of its FFN in each layer of a step with one token; 0: not known.
    ffn_s: float = field(default=0.0, compare=False)
    #: By how much the machine is planned to be slower than it measured.
    slowdown: float = field(default=1.0, compare=False)
    #: What the plan lets the node grow to, with the process that starts it.
    planned_bytes: int = field(default=0, compare=False)

    @property
    def attention(self) -> UnitRange:
        return self.share.attention.start, self.share.attention.stop

    @property
    def ffn(self) -> UnitRange:
        return self.share.ffn.start, self.share.ffn.stop


@dataclass(frozen=True)
class Assignments:
    """What each machine of a plan does, rank 0 first; `spare` says why each other machine has no part. `step_s`:
    seconds that it is predicted to take for one token; 0: not known."""

    assignments: tuple[Assignment, ...]
    spare: Mapping[str, SpareReason] = field(default_factory=dict)
    step_s: float = 0.0


@dataclass(frozen=True)
class NoPlan:
    """Why there are no assignments, in one line; `spare` says of machines why no plan can have a part for them."""

    reason: str
    spare: Mapping[str, SpareReason] = field(default_factory=dict)


@dataclass(frozen=True)
class Served:
    """The model and the settings that are the same in every epoch. The KV cache has `capacity_tokens` positions for all
    requests together. Up to `sequences` of them run at once, each with at most `context_tokens` positions and
    `speculate` drafted tokens per step, as in Assign."""

    pack: Path
    pack_id: str
    compute: Compute
    capacity_tokens: int
    context_tokens: int
    sequences: int = 1
    speculate: int = 0
    collective: CollectiveChoice = "auto"
    wire: WirePrecision = "f32"
    kv: KVPrecision = "f32"
    #: Query heads of one KV head, and bytes of the KV cache for a position of one KV head in all layers; 0: not known.
    group_size: int = 1
    kv_head_bytes: float = 0.0
    #: Of each layer of a quantised model, the exponents of o and down.
    grids: Exponents = ()
    #: What of a quantised model machines compute with other bits than each other; "" where there is nothing.
    apart: str = ""

    @property
    def quantised(self) -> bool:
        """Whether the layers' weights are quantised; exactly those models are computed in int8."""
        return self.compute == "int8"

    @property
    def split_shows(self) -> str:
        """Why the last bits of answers may depend on who computes them; "" where they do not, as a quantised
        model's with a wire that does not round (docs/kernels.md)."""
        if not self.quantised:
            return f"{self.compute} arithmetic"
        return f"parts that travel as {self.wire}" if self.wire != "f32" else self.apart

    def prepare(self, epoch: int, assignments: tuple[Assignment, ...], rank: int, timing: Timing) -> Prepare:
        """The request to the worker of `rank` to get its part of the epoch ready."""
        assignment = assignments[rank]
        return Prepare(
            epoch=epoch,
            rank=rank,
            ranks=len(assignments),
            pack=self.pack_id,
            attention=assignment.attention,
            ffn=assignment.ffn,
            compute=self.compute,
            threads=assignment.threads,
            capacity_tokens=self.capacity_tokens,
            planned_bytes=assignment.planned_bytes,
            heartbeat_s=timing.heartbeat_s,
            timeout_s=timing.timeout_s,
            stall_s=timing.stall_s,
        )

    def assign(
        self,
        epoch: int,
        assignments: tuple[Assignment, ...],
        rank: int,
        keys: Mapping[int, str],
        carried: Carried | None = None,
    ) -> Assign:
        """The part of the plan for the node of `rank`; `keys` holds the public keys of all nodes by rank, `carried` is
        what the epoch before left."""
        assignment = assignments[rank]
        return Assign(
            epoch=epoch,
            rank=rank,
            nodes=tuple(range(len(assignments))),
            attention=assignment.attention,
            ffn=assignment.ffn,
            pack=str(self.pack) if rank == 0 else "",
            compute=self.compute,
            threads=assignment.threads,
            capacity_tokens=self.capacity_tokens,
            context_tokens=self.context_tokens,
            sequences=self.sequences,
            speculate=self.speculate,
            peer_keys=tuple(sorted(keys.items())),
            weights=assignment.weights,
            collective=self.collective,
            wire=self.wire,
            kv=self.kv,
            grids=self.grids,
            elastic=any(one.weights.pin == "auto" for one in assignments),
            carried=carried,
        )


def collective_names(collective: str, bulk_collective: str) -> str:
    """The collectives as the user reads them: for the all-reduces of a token, and for a prompt's if that differs."""
    return collective if collective == bulk_collective else f"{collective} (prompts: {bulk_collective})"
