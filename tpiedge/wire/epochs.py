"""Messages between the master and the agents: one agent per worker, which outlives the epochs, starts a node for each
of them and keeps the worker's shards.

Life of an epoch: Prepare -> Preparing* -> Prepared -> Launch -> Spawned -> (the node speaks for itself, `control.py`)
-> NodeEnded, or Release by the master, which NodeEnded answers. A NodeEnded without a Spawned before says that the
preparation failed. Fetching disturbs no node: the epoch before may serve until the Launch. An agent that is in no
epoch writes epoch 0. Stock, which Stocked answers, belongs to no epoch.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from tpiedge.wire.fields import (
    U32,
    U64,
    Blob,
    Compute,
    Key,
    Message,
    Name,
    Rank,
    Rate,
    Seconds,
    SpareKind,
    Text,
    UnitRange,
    check_rates,
)
from tpiedge.wire.limits import MAX_BLOB, MAX_NODES
from tpiedge.wire.weights import Keeping

PackId = Annotated[str, Meta(max_length=128)]
"""Names the contents of a pack."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a node measured of itself with `threads` threads: bytes of bf16 weights per second in a product with one
    token, and bytes of panels (quantised weights) likewise.

    All zero: not measured.
    """

    threads: U32
    weight_bytes_per_s: Rate
    panel_bytes_per_s: Rate

    def __post_init__(self) -> None:
        check_rates(self.weight_bytes_per_s, self.panel_bytes_per_s)

    def speed(self, quantised: bool) -> float:
        """Bytes per second, in a product with one token, of weights that are quantised or of those that are not; 0: not
        measured."""
        return self.panel_bytes_per_s if quantised else self.weight_bytes_per_s


class Offer(Message, frozen=True):
    """Agent to master, first of all and whenever it changes: what the worker can give.

    `nonce` is random per start of the agent: a new one means that whatever the old agent had is gone.
    `memory_bytes` and `free_disk_bytes` are what tpiedge may use, `keeping` says how.
    """

    epoch: U32
    name: Name
    host: Name
    version: Name
    protocol: U32
    nonce: U64
    cpu: Name
    isa: Name
    threads: U32
    memory_bytes: U64
    free_disk_bytes: U64
    capacity: Capacity
    disk_bytes_per_s: Rate
    keeping: Keeping

    def __post_init__(self) -> None:
        check_rates(self.disk_bytes_per_s)


class AskOffer(Message, frozen=True):
    """Master to agent: this master does not know what the worker has to give, perhaps because it is a new one."""

    epoch: U32


class Prepare(Message, frozen=True):
    """Master to agent: fetch what is missing of this share of the node of `rank` among `ranks` ranks.

    `planned_bytes` is what the plan lets the node grow to, with its agent. The seconds are those of the node's
    bootstrap.
    """

    epoch: U32
    rank: Rank
    ranks: U32
    pack: PackId
    attention: UnitRange
    ffn: UnitRange
    compute: Compute
    threads: U32
    capacity_tokens: U32
    planned_bytes: U64
    heartbeat_s: Seconds
    timeout_s: Seconds
    stall_s: Seconds


class Preparing(Message, frozen=True):
    """Agent to master: how far fetching is; `total_bytes` is what was missing at the start."""

    epoch: U32
    done_bytes: U64
    total_bytes: U64
    bytes_per_s: Rate

    def __post_init__(self) -> None:
        check_rates(self.bytes_per_s)


class Prepared(Message, frozen=True):
    """Agent to master: everything is on disk. The node will join with `public_key`, which was made for this epoch."""

    epoch: U32
    public_key: Key


class Launch(Message, frozen=True):
    """Master to agent: start the node that was prepared."""

    epoch: U32


class Spawned(Message, frozen=True):
    """Agent to master: the node of the epoch runs."""

    epoch: U32
    rank: Rank
    pid: U32


class NodeEnded(Message, frozen=True):
    """Agent to master: the epoch has no node here (any more). `kind` is the class of the error if preparing failed,
    "" if the node's process ended."""

    epoch: U32
    kind: Name
    cause: Text


class Release(Message, frozen=True):
    """Master to agent: end the node of this epoch, or stop preparing it."""

    epoch: U32


class Spare(Message, frozen=True):
    """Master to agent, and again when `kind` changes: the plan has no part for this worker. `why` is a sentence about
    "it", the worker's machine."""

    epoch: U32
    kind: SpareKind
    why: Text


class AgentPulse(Message, frozen=True):
    """Agent to master, regularly: that it lives."""

    epoch: U32


class Leaving(Message, frozen=True):
    """Agent to master: it was told to end; nothing more will come."""

    epoch: U32


class MasterPulse(Message, frozen=True):
    """Master to agent, regularly: that it lives, and the state of the cluster in a word. `busy`: a request runs or
    waits, or another plan is prepared."""

    epoch: U32
    state: Name
    busy: bool


class Stock(Message, frozen=True):
    """Master to agent: what other plans need of `pack` here, (attention, ffn) of each; to be fetched while nobody is
    busy, as far as the disk has room. It takes the place of the Stock before. Stocked answers, with its number."""

    epoch: U32
    number: U32
    pack: PackId
    shares: Annotated[tuple[tuple[UnitRange, UnitRange], ...], Meta(max_length=MAX_NODES)]


class Stocked(Message, frozen=True):
    """Agent to master: `held_bytes` of the pack's weights are on this machine's disk. `complete`: all that Stock wants;
    `why` it will not be, in one line, "" where it will."""

    epoch: U32
    number: U32
    held_bytes: U64
    complete: bool
    why: Text


class Probe(Message, frozen=True):
    """Master to agent: answer with an Echo of the same number and `answer_bytes` of payload, at once.

    Without payloads it measures the round trip; with one, the bandwidth of that direction.
    """

    epoch: U32
    number: U32
    answer_bytes: Annotated[int, Meta(ge=0, le=MAX_BLOB)]
    payload: Blob


class Echo(Message, frozen=True):
    """The answer to a Probe."""

    epoch: U32
    number: U32
    payload: Blob
