"""A plan as the master keeps it, and the messages made from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tpiedge import __version__
from tpiedge.kv.page_folder import PAGE_VERSION
from tpiedge.launch.bootstrap import Timing
from tpiedge.master.page_keys import PageSecrets
from tpiedge.pack.grids import Exponents
from tpiedge.pack.share import NodeShare
from tpiedge.planner.capacity import SpareReason
from tpiedge.wire import fields as f
from tpiedge.wire.control import Assign, KVSnapshot, PageKeys
from tpiedge.wire.epochs import Prepare


@dataclass(frozen=True)
class Assignment:
    """One machine's part of a plan. `machine`: the worker's name; "" for the master's machine. `weight_bytes`: bytes of
    weights that stay in memory. `why`, `host`: texts for the user. `speed`: bytes of weights per second. With int8
    arithmetic, these are quantised weights. `keeps`, `parks`: whether the machine gives disk space to kept, to parked
    KV pages."""

    machine: str
    share: NodeShare
    threads: int
    weight_bytes: int
    why: str = field(compare=False)
    weights: f.WeightMemory = f.ALL_PINNED
    host: str = field(default="", compare=False)
    speed: float = field(default=0.0, compare=False)
    ffn_s: float = field(default=0.0, compare=False)  # in a layer, for one token; 0: not known
    slowdown: float = field(default=1.0, compare=False)  # expected: so many times slower than measured
    planned_bytes: int = field(default=0, compare=False)  # peak memory, with the process that starts it
    keeps: bool = False
    parks: bool = False


@dataclass(frozen=True)
class Assignments:
    """A plan, rank 0 first, or the `reason` for its absence. `spare`: why machines have no part. `step_s`: seconds of a
    token, 0 if unknown."""

    assignments: tuple[Assignment, ...]
    spare: Mapping[str, SpareReason] = field(default_factory=dict)
    step_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Served:
    """The model and the settings of every epoch. `capacity_tokens`: positions of the KV cache. `sequences`: the most
    requests at once. `context_tokens`: the most positions of one request. `speculate`: the most drafted tokens of a
    sequence in a step."""

    pack: Path
    pack_id: str
    compute: f.Compute
    capacity_tokens: int
    context_tokens: int
    sequences: int = 1
    speculate: int = 0
    collective: f.CollectiveChoice = "auto"
    wire: f.WirePrecision = "f32"
    kv: f.KVPrecision = "f32"
    group_size: int = 1  # query heads of a KV head, in the layer with the fewest
    kv_head_bytes: float = 0.0  # KV cache for a position of one group of heads in all layers; 0: not known
    grids: Exponents = ()  # for int8
    name: str = ""  # the model's, for the user
    apart: str = ""  # with int8: the part of the model that machines compute with different bits
    pages: PageSecrets | None = None  # None: KV pages never go to disk

    @property
    def int8(self) -> bool:
        return self.compute == "int8"

    @property
    def split_shows(self) -> str:
        """The reason why the last bits of logits depend on the split, or ""."""
        if not self.int8:
            return f"{self.compute} arithmetic"
        return f"parts that travel as {self.wire}" if self.wire != "f32" else self.apart

    def prepare(self, epoch: int, plan: Assignments, rank: int, timing: Timing) -> Prepare:
        assignment = plan.assignments[rank]
        return Prepare(
            epoch=epoch,
            rank=rank,
            ranks=len(plan.assignments),
            pack=self.pack_id,
            share=assignment.share.ranges,
            planned_bytes=assignment.planned_bytes,
            heartbeat_s=timing.heartbeat_s,
            timeout_s=timing.timeout_s,
            stall_s=timing.stall_s,
        )

    def assign(
        self, epoch: int, plan: Assignments, rank: int, keys: Mapping[int, str], snapshot: KVSnapshot | None
    ) -> Assign:
        """Makes the Assign for `rank`. `keys`: nodes' public keys. `snapshot`: the previous epoch's KV cache."""
        assignment = plan.assignments[rank]
        return Assign(
            epoch=epoch,
            rank=rank,
            nodes=tuple(range(len(plan.assignments))),
            share=assignment.share.ranges,
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
            elastic=any(one.weights.pin == "auto" for one in plan.assignments),
            snapshot=snapshot,
            pages=self._page_keys(plan.assignments, rank),
        )

    def _page_keys(self, parts: Sequence[Assignment], rank: int) -> PageKeys | None:
        secrets, machine = self.pages, parts[rank].machine
        if secrets is None:
            return None
        facts = (__version__, PAGE_VERSION, self.pack_id, self.compute, self.kv, self.grids)
        split = [(one.machine, one.threads, one.share.ranges) for one in parts]
        own_split = (split, self.collective, self.wire) if self.split_shows else ()
        keep = secrets.kept is not None and all(one.keeps for one in parts)
        return PageKeys(
            # Equal unless bits depend on the split.
            shared=b"" if rank else secrets.name_key(facts, own_split),
            own=b"" if rank else secrets.name_key(facts, ()),
            kept_seal=secrets.kept_seal(machine) if keep else b"",
            parked_seal=secrets.parked_seal(machine),
            keep=keep,
            park=all(one.parks for one in parts),
        )


def without_disk(parts: Sequence[Assignment], flag: Literal["--keep-context", "--kv-disk"]) -> str:
    """Says which machines keep a plan's KV pages off all disks, where the master's owner wants them there. Returns ""
    if none does."""
    gives = [one.keeps if flag == "--keep-context" else one.parks for one in parts]
    lacking = [one.host for one, given in zip(parts, gives, strict=True) if not given]
    if not lacking or not gives[0]:
        return ""
    what = "prompts are not kept" if flag == "--keep-context" else "waiting conversations are not"
    hosts = ", ".join(lacking)
    return f"{what} on disk, which needs space on every machine: start the worker on {hosts} with {flag} SIZE"


def collective_names(collective: str, bulk_collective: str) -> str:
    return collective if collective == bulk_collective else f"{collective} (prompts: {bulk_collective})"
