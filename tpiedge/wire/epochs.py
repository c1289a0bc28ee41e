"""Defines the messages between the master and the agents: offers, orders to start a node, prefetch, spares.

Life of an epoch: Prepare -> Preparing* -> Prepared -> Launch -> Spawned -> (the node's own messages, `control.py`) ->
NodeEnded. Release ends the epoch early. NodeEnded without Spawned means that preparing failed. The previous epoch may
serve until Launch. An agent without a node sends epoch 0. Prefetch, Prefetched, AskPages and PageFiles belong to no
epoch.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from tpiedge.wire import fields as f

PackId = Annotated[str, Meta(max_length=128)]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The speeds at which a node multiplies bf16 weights, and quantised weights in panels, by one token. 0 means not
    measured."""

    weight_bytes_per_s: f.Rate
    panel_bytes_per_s: f.Rate

    def __post_init__(self) -> None:
        f.check_rates(self.weight_bytes_per_s, self.panel_bytes_per_s)

    def speed(self, int8: bool) -> float:
        return self.panel_bytes_per_s if int8 else self.weight_bytes_per_s


class Offer(f.EpochMessage, frozen=True, tag=96):
    """Agent to master, at first and after changes: the resources that tpiedge may use. `nonce` changes with a
    restart."""

    host: f.Name
    nonce: f.U64
    isa: f.Name
    threads: f.U32
    memory_bytes: f.U64
    free_disk_bytes: f.U64
    capacity: Capacity
    disk_bytes_per_s: f.Rate
    keeping: f.Keeping
    keep_bytes: f.U64  # disk space that the owner gives to kept prefixes; 0: none
    park_bytes: f.U64  # disk space for pages of waiting conversations; 0: none

    def __post_init__(self) -> None:
        f.check_rates(self.disk_bytes_per_s)


class AskOffer(f.EpochMessage, frozen=True, tag=106):
    """Master to agent: send your Offer."""


class Prepare(f.NodeMessage, frozen=True, tag=97):
    """Master to agent: fetch the share of `rank`. The fields in seconds are the Timing of its node."""

    ranks: f.U32  # how many ranks the plan has
    pack: PackId
    share: f.ShareRanges
    planned_bytes: f.U64  # the plan's limit for node and agent
    heartbeat_s: f.Seconds
    timeout_s: f.Seconds
    stall_s: f.Seconds


class Preparing(f.EpochMessage, frozen=True, tag=98):
    """Agent to master: the progress of fetching the share."""

    done_bytes: f.U64
    total_bytes: f.U64
    bytes_per_s: f.Rate

    def __post_init__(self) -> None:
        f.check_rates(self.bytes_per_s)


class Prepared(f.EpochMessage, frozen=True, tag=107):
    """Agent to master: the share is on disk. `public_key` is the node's key in this epoch."""

    public_key: f.Key


class Launch(f.EpochMessage, frozen=True, tag=108):
    """Master to agent: start the prepared node."""


class Spawned(f.NodeMessage, frozen=True, tag=99):
    """Agent to master: the node of the epoch runs."""

    pid: f.U32


class NodeEnded(f.EpochMessage, frozen=True, tag=100):
    """Agent to master: no node runs on this machine."""

    cause: f.Text


class Release(f.EpochMessage, frozen=True, tag=101):
    """Master to agent: end the epoch's node, or stop preparing it."""


class Spare(f.EpochMessage, frozen=True, tag=110):
    """Master to agent, when `kind` changes: the plan does not use this machine. In `why`, "it" is the machine."""

    kind: f.SpareKind
    why: f.Text


class AgentPulse(f.EpochMessage, frozen=True, tag=102):
    """Agent to master, regularly: the agent is alive."""


class Leaving(f.EpochMessage, frozen=True, tag=109):
    """Agent to master: the agent was told to end."""


class MasterPulse(f.EpochMessage, frozen=True, tag=103):
    """Master to agent, regularly. `at_rest` means that no request runs or waits, and no plan is prepared."""

    at_rest: bool


class Prefetch(f.EpochMessage, frozen=True, tag=111):
    """Master to agent: from now on prefetch only these shares, while the cluster is at rest and the disk has
    room."""

    number: f.U32
    pack: PackId
    shares: Annotated[tuple[f.ShareRanges, ...], Meta(max_length=f.MAX_NODES)]


class Prefetched(f.EpochMessage, frozen=True, tag=112):
    """Agent to master: the disk has `held_bytes` of the pack."""

    number: f.U32
    held_bytes: f.U64
    complete: bool  # the disk has all shares that Prefetch named
    why: f.Text  # the obstacle, or ""


class AskPages(f.EpochMessage, frozen=True, tag=113):
    """Master to agent: answer with PageFiles. If `clear`, first delete the page files of this machine."""

    number: f.U32
    clear: bool


class PageFiles(f.EpochMessage, frozen=True, tag=114):
    """Agent to master: the page files on this machine's disk, or the deleted ones after `clear`."""

    number: f.U32
    kept_pages: f.U32
    kept_bytes: f.U64
    parked_pages: f.U32
    parked_bytes: f.U64
    why: f.Text  # the obstacle, or ""


class Probe(f.EpochMessage, frozen=True, tag=104):
    """Master to agent, or node to node: send at once an Echo with this number and `answer_bytes` of payload."""

    number: f.U32
    answer_bytes: Annotated[int, Meta(ge=0, le=f.MAX_BLOB)]


class Echo(f.EpochMessage, frozen=True, tag=105):
    number: f.U32
    payload: f.Blob
