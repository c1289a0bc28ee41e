"""A cluster whose machines can be broken: each has a network, a disk, a limit of memory and a clock of its own, as far
as that is possible here and wanted."""

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mixtures import VALUES
from tests.process.network.cluster import NetworkCluster
from tests.process.network.namespaces import MASTER, Namespaces, why_impossible
from tests.process.serving.disks import FailingDisk, NoDisk, mounted_disk
from tests.process.serving.machines import Worker
from tests.process.serving.serving import Serving
from tests.process.serving.test_structured import OPENER, RARE, TEMPLATE
from tests.process.serving.wall_clock import WallClock, build_shim, why_no_shim
from tools.make_checkpoint import Progress, write_weights
from tpiedge.errors import UserError
from tpiedge.host.private_file import PAGES
from tpiedge.kv.page_folder import KEPT, PARKED
from tpiedge.lab.memory_group import MemoryGroup, memory_group
from tpiedge.model.source import DEMO, resolve_model

#: Of faults, as --faults names them.
KINDS = (
    *("kills", "processes", "links", "disks", "memory", "clocks", "master", "readers", "pages", "page-disks"),
)
#: What a master that records its answers goes on after.
RECORDED = frozenset(("master", "readers", "pages"))
#: The name of a model with experts, which is made anew.
MIXTURE = "mixture"
#: With these, pages of the KV cache are kept and parked on disk.
PAGED = frozenset(("pages", "page-disks"))
#: What each machine gives for kept and parked pages, in bytes. The demo's answers leave more pages than may be kept.
PAGE_BYTES = {KEPT: 2_000_000, PARKED: 32_000_000}
#: Of memory, in bytes.
NO_LIMIT = 1 << 50
_SLOW = 1e6  # as every machine says of its memory: one more is worth having
_EXTRA = "extra"
_TIMEOUT_S = 60  # of an agent that is started while its link is cut
_LEAST_DISK = 64 << 20
_KEEPING = ("--keep-context", PAGE_BYTES[KEPT], "--kv-disk", PAGE_BYTES[PARKED])


def why_not(kind: str, folder: Path) -> str | None:
    """Returns the reason why faults of that kind are impossible here. `folder`: for a try."""
    if kind == "links":
        return why_impossible("nft", "tc")
    if kind in ("disks", "page-disks"):
        try:
            with mounted_disk(folder / "try", folder / "try.image"):
                return None
        except NoDisk as error:
            return str(error)
    if kind == "memory":
        try:
            with memory_group(NO_LIMIT):
                return None
        except UserError as error:
            return f"groups: {error}"
    return why_no_shim() if kind == "clocks" else None


def calling_model(folder: Path) -> str:
    """The demo model below `folder`, with a template that knows tools and a token that opens calls."""
    model = folder / "demo"
    shutil.copytree(resolve_model(DEMO), model)
    (model / "chat_template.jinja").write_text(TEMPLATE.replace(RARE, "<|user|>"))
    tokenizer = model / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace(RARE, OPENER))
    return str(model)


def mixture(folder: Path) -> str:
    """A random model with experts below `folder`, with the demo's tokenizer."""
    model, config = folder / MIXTURE, {**VALUES, "vocab_size": 2048, "max_position_embeddings": 2048}
    shutil.copytree(resolve_model(DEMO), model)
    (model / "config.json").write_text(json.dumps(config))
    write_weights(model, config, "bf16", 1, 1 << 30, Progress(1 << 30))
    return str(model)


@dataclass(frozen=True)
class Stage:
    """The breakable parts of a cluster. Mappings are by worker, `clocks` also by "master"; a kind that stays whole has
    none, and `links` is None then."""

    cluster: Serving
    names: tuple[str, ...]
    links: Namespaces | None
    disks: dict[str, FailingDisk]
    groups: dict[str, MemoryGroup]
    clocks: dict[str, WallClock]
    #: Folders of page files, by worker and "master", and their disks.
    pages: dict[str, Path]
    page_disks: dict[str, FailingDisk]

    def start_worker(self, name: str, *, token: bool) -> Worker:
        """Starts one of `names`, or an extra worker, which has nothing of its own but its folders."""
        more: dict[str, Any] = {"token": token, "bytes_per_s": _SLOW}
        if name in self.clocks:
            more["program"] = self.clocks[name].program
        wait = ("--wait", _TIMEOUT_S)
        keeps = _KEEPING if name in self.pages else ()
        if isinstance(self.cluster, NetworkCluster):
            more["machine"] = name if name in self.names else _EXTRA
            worker = self.cluster.join(name, *wait, *keeps, **more)
        else:
            worker = self.cluster.start_worker(name, *wait, *keeps, **more)
        if name in self.groups:
            self.groups[name].members_file.write_text(str(worker.process.pid))
        return worker

    def start(self, limit_s: float) -> None:
        self.cluster.start_master()
        for name in self.names:
            self.start_worker(name, token=True)
        self.cluster.wait_ready(1 + len(self.names), limit_s)


@contextlib.contextmanager
def set_up(
    folder: Path, kinds: Collection[str], names: Sequence[str], model: str, options: Sequence[object]
) -> Iterator[Stage]:
    """Machines on which `kinds` can be broken, nothing started. This thread is on the master's machine. The end fails
    where a process or port of the cluster is left over."""
    with contextlib.ExitStack() as stack:
        links = stack.enter_context(Namespaces((MASTER, *names, _EXTRA))) if "links" in kinds else None
        if links is not None:
            stack.enter_context(links.inside(MASTER))
        home = folder / "cluster"
        home.mkdir(parents=True)
        disks, groups, clocks = {}, {}, {}
        if "disks" in kinds:
            size = _disk_bytes(model)
            for name in names:
                disk = mounted_disk(home / f"{name}-cache", folder / f"{name}.image", size)
                disks[name] = stack.enter_context(disk)
        if "memory" in kinds:
            groups = {name: stack.enter_context(memory_group(NO_LIMIT)) for name in names}
        if "clocks" in kinds:
            shim = build_shim(folder)
            clocks = {name: WallClock(shim, folder / f"{name}.clock") for name in (MASTER, *names)}
        pages, page_disks = {}, {}
        if PAGED.intersection(kinds):
            options = *options, *_KEEPING, "--share-prefixes"
            states = {MASTER: home / "master-state" / "master"}
            states |= {name: home / f"{name}-state" / "worker" for name in names}
            pages = {name: state / PAGES for name, state in states.items()}
        if "page-disks" in kinds:
            for name, path in pages.items():
                disk = mounted_disk(path, folder / f"{name}-pages.image")
                page_disks[name] = stack.enter_context(disk)
        more: dict[str, Any] = {"model": model, "cache": folder / "cache", "bytes_per_s": _SLOW}
        if MASTER in clocks:
            more["program"] = clocks[MASTER].program
        cluster = NetworkCluster(home, links, *options, **more) if links else Serving(home, *options, **more)
        stack.enter_context(contextlib.closing(cluster))
        yield Stage(cluster, tuple(names), links, disks, groups, clocks, pages, page_disks)


def _disk_bytes(model: str) -> int:
    """Room for its pack and as much again."""
    path = Path(model)
    files = [path, *path.rglob("*")] if path.exists() else []
    return _LEAST_DISK + 2 * sum(os.path.getsize(file) for file in files if file.is_file())
