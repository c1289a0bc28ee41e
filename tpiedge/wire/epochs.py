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

from tpiedge.wire import fields as f

PackId = Annotated[str, Meta(max_length=128)]
"""Names the contents of a pack."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a node measured of itself with `threads` threads: bytes of bf16 weights per second in a product with one
    token, and bytes of panels (quantised weights) likewise.

    All zero: not measured.
    """

    threads: f.U32
    weight_bytes_per_s: f.Rate
    panel_bytes_per_s: f.Rate

    def __post_init__(self) -> None:
        f.check_rates(self.weight_bytes_per_s, self.panel_bytes_per_s)

    def speed(self, quantised: bool) -> float:
        """Bytes per second, in a product with one token, of weights that are quantised or of those that are not; 0: not
        measured."""
        return self.panel_bytes_per_s if quantised else self.weight_bytes_per_s


class Offer(f.Message, frozen=True):
    """Agent to master, first of all and whenever it changes: what the worker can give.

    `nonce` is random per start of the agent: a new one means that whatever the old agent had is gone.
    `memory_bytes` and `free_disk_bytes` are what tpiedge may use, `keeping` says how.
    """

    epoch: f.U32
    name: f.Name
    host: f.Name
    version: f.Name
    protocol: f.U32
    nonce: f.U64
    cpu: f.Name
    isa: f.Name
    threads: f.U32
    memory_bytes: f.U64
    free_disk_bytes: f.U64
    capacity: Capacity
    disk_bytes_per_s: f.Rate
    keeping: f.Keeping

    def __post_init__(self) -> None:
        f.check_rates(self.disk_bytes_per_s)


class AskOffer(f.Message, frozen=True):
    """Master to agent: this master does not know what the worker has to give, perhaps because it is a new one."""

    epoch: f.U32


class Prepare(f.Message, frozen=True):
    """Master to agent: fetch what is missing of this share of the node of `rank` among `ranks` ranks.

    `planned_bytes` is what the plan lets the node grow to, with its agent. The seconds are those of the node's
    bootstrap.
    """

    epoch: f.U32
    rank: f.Rank
    ranks: f.U32
    pack: PackId
    attention: f.UnitRange
    ffn: f.UnitRange
    compute: f.Compute
    threads: f.U32
    capacity_tokens: f.U32
    planned_bytes: f.U64
    heartbeat_s: f.Seconds
    timeout_s: f.Seconds
    stall_s: f.Seconds


class Preparing(f.Message, frozen=True):
    """Agent to master: how far fetching is; `total_bytes` is what was missing at the start."""

    epoch: f.U32
    done_bytes: f.U64
    total_bytes: f.U64
    bytes_per_s: f.Rate

    def __post_init__(self) -> None:
        f.check_rates(self.bytes_per_s)


class Prepared(f.Message, frozen=True):
    """Agent to master: everything is on disk. The node will join with `public_key`, which was made for this epoch."""

    epoch: f.U32
    public_key: f.Key


class Launch(f.Message, frozen=True):
    """Master to agent: start the node that was prepared."""

    epoch: f.U32


class Spawned(f.Message, frozen=True):
    """Agent to master: the node of the epoch runs."""

    epoch: f.U32
    rank: f.Rank
    pid: f.U32


class NodeEnded(f.Message, frozen=True):
    """Agent to master: the epoch has no node here (any more). `kind` is the class of the error if preparing failed,
    "" if the node's process ended."""

    epoch: f.U32
    kind: f.Name
    cause: f.Text


class Release(f.Message, frozen=True):
    """Master to agent: end the node of this epoch, or stop preparing it."""

    epoch: f.U32


class Spare(f.Message, frozen=True):
    """Master to agent, and again when `kind` changes: the plan has no part for this worker. `why` is a sentence about
    "it", the worker's machine."""

    epoch: f.U32
    kind: f.SpareKind
    why: f.Text


class AgentPulse(f.Message, frozen=True):
    """Agent to master, regularly: that it lives."""

    epoch: f.U32


class Leaving(f.Message, frozen=True):
    """Agent to master: it was told to end; nothing more will come."""

    epoch: f.U32


class MasterPulse(f.Message, frozen=True):
    """Master to agent, regularly: that it lives, and the state of the cluster in a word. `busy`: a request runs or
    waits, or another plan is prepared."""

    epoch: f.U32
    state: f.Name
    busy: bool


class Stock(f.Message, frozen=True):
    """Master to agent: what other plans need of `pack` here, (attention, ffn) of each; to be fetched while nobody is
    busy, as far as the disk has room. It takes the place of the Stock before. Stocked answers, with its number."""

    epoch: f.U32
    number: f.U32
    pack: PackId
    shares: Annotated[tuple[tuple[f.UnitRange, f.UnitRange], ...], Meta(max_length=f.MAX_NODES)]


class Stocked(f.Message, frozen=True):
    """Agent to master: `held_bytes` of the pack's weights are on this machine's disk. `complete`: all that Stock wants;
    `why` it will not be, in one line, "" where it will."""

    epoch: f.U32
    number: f.U32
    held_bytes: f.U64
    complete: bool
    why: f.Text


class Probe(f.Message, frozen=True):
    """Master to agent: answer with an Echo of the same number and `answer_bytes` of payload, at once.

    Without payloads it measures the round trip; with one, the bandwidth of that direction.
    """

    epoch: f.U32
    number: f.U32
    answer_bytes: Annotated[int, Meta(ge=0, le=f.MAX_BLOB)]
    payload: f.Blob


class Echo(f.Message, frozen=True):
    """The answer to a Probe."""

    epoch: f.U32
    number: f.U32
    payload: f.Blob
