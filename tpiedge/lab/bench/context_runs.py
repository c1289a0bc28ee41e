"""Runs clusters whose KV pages go to disk, for `tpiedge bench context`. A seed fixes the prompts.

Every prompt is a whole number of pages and a few tokens, so that the pages on disk are exactly its own.
"""

import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TypeAlias, cast

from tpiedge.cli.reach import MasterClient, admin_of
from tpiedge.clock import MonotonicClock
from tpiedge.errors import PeerError
from tpiedge.host.disk_speed import DiskSpeed
from tpiedge.host.private_file import PAGES
from tpiedge.kv.page_folder import KEPT, PARKED
from tpiedge.lab.bench.context_figures import (
    RESTORE_S,
    TURN_S,
    PagedAnswer,
    Restored,
    first_s,
    keeping_record,
    paged_record,
    restore_record,
    seconds_per_token,
    streams_record,
)
from tpiedge.lab.bench.serve_client import MeasuredServer, ServePrompt, Streams
from tpiedge.lab.bench.serve_cluster import ClusterHome, ClusterWish, cluster_at, cluster_home, own_cluster
from tpiedge.lab.bench.serve_figures import RoundFigures, TimedAnswer
from tpiedge.lab.bench.serve_run import RandomPrompts, by_clients
from tpiedge.memory.disk import DiskQueue
from tpiedge.memory.reader import DirectFile
from tpiedge.progress import Say

CONVERSATIONS: Final = 8
MEMORY_CONVERSATIONS: Final = 2
"""Conversations whose KV cache the memory holds."""
STREAMS: Final = 16
NEW_TOKENS: Final = 8
"""New tokens of a later prompt; fewer than the smallest page has, less one for the answer."""
_DISK: Final = "64GB"
_OF_MASTER: Final = ("--share-prefixes", "--speculate", "off", "--parallel", str(STREAMS))
_KEEP: Final = ("--keep-context", _DISK)
_PARK: Final = ("--kv-disk", _DISK)
#: The setting of a cluster -> (streams for which its KV cache has room, flags of all machines).
_Settings: TypeAlias = Mapping[str, tuple[int, tuple[str, ...]]]
_STREAMS: Final[_Settings] = {
    "room": (STREAMS, ()),
    "disk": (STREAMS // 2, _PARK),
    "computed": (STREAMS // 2, ()),
}
_KEEPING: Final[_Settings] = {"none": (1, ()), "kept": (1, _KEEP)}
_ALONE: Final = 3  # answers that are measured in each cluster
_LEFT_S: Final = 120.0
_POLL_S: Final = 0.05
_READ_S: Final = 0.5
_READ_LIMIT_S: Final = 300.0


def more_tokens(repeats: int) -> int:
    """Returns how many tokens a prompt gets in all repeats, and its answer."""
    return (repeats + 1) * NEW_TOKENS + 1


@dataclass(frozen=True)
class ContextWish:
    """A measurement. `machine`, `master` and `worker` are flags of all machines, of the master and of the workers.
    `prompt_tokens` are whole pages of `page_tokens`."""

    machine: tuple[str, ...]
    master: tuple[str, ...]
    worker: tuple[str, ...]
    nodes: int
    vocabulary: int
    page_tokens: int
    prompt_tokens: int
    repeats: int

    @property
    def stream_tokens(self) -> int:
        """Tokens of a stream's prompt, and of its answer: whole pages."""
        return max(1, self.prompt_tokens // STREAMS // self.page_tokens) * self.page_tokens

    @property
    def most_tokens(self) -> int:
        """Positions of the longest prompt and its answer."""
        return self.prompt_tokens + more_tokens(self.repeats)

    def cluster(self, context: int, sequences: int, *flags: str) -> ClusterWish:
        """Describes a cluster whose KV cache holds `sequences` of `context` positions. `flags` are further flags of all
        machines."""
        machine = (*self.machine, *flags)
        # Drafts would make the time of a token depend on the text.
        sizes = ("--context", str(context), "--kv-tokens", str(sequences * context))
        own = (*self.master, *machine, *sizes, *_OF_MASTER)
        return ClusterWish(own, self.nodes - 1, (*self.worker, *machine))

    def prompts(self) -> RandomPrompts:
        return RandomPrompts(self.vocabulary, 0, 0)


def measure_restore(wish: ContextWish, say: Say) -> dict[str, Any]:
    """Measures prompts of which all but the last tokens were computed before all processes ended. Raises UserError,
    PeerError, ResourceError."""
    random, found, direct = wish.prompts(), list[Restored](), True
    pages = wish.prompt_tokens // wish.page_tokens
    with cluster_home() as home:
        prefix: tuple[int, ...] = ()
        computed_s, files, before = 0.0, list[Path](), DiskSpeed(1.0, is_direct=True)
        for repeat in range(wish.repeats + 1):
            known = {*_page_files(home, KEPT)}
            with (
                cluster_at(home, wish.cluster(wish.most_tokens, 2, *_KEEP)) as server,
                admin_of(home.state) as master,
            ):
                _asked(server, random.unlike(NEW_TOKENS))
                if repeat:
                    own_s = first_s(_asked(server, random.unlike(NEW_TOKENS)))
                    again = _asked(server, (*prefix, *random.unlike(NEW_TOKENS)))
                    after = read_files(files)
                    rate = fmean((before.bytes_per_s, after.bytes_per_s))
                    nbytes = sum(path.stat().st_size for path in files)
                    apart_s = RESTORE_S + own_s
                    paged = PagedAnswer(first_s(again), again.cached_tokens, nbytes, rate, apart_s)
                    found.append(Restored(computed_s, paged))
                    direct = direct and before.is_direct and after.is_direct
                    say(f"  {paged.first_s:.2f} s after a restart, {computed_s:.2f} s computed")
                if repeat == wish.repeats:
                    break
                say(f"repeat {repeat + 1} of {wish.repeats}: a prompt of {wish.prompt_tokens} tokens")
                prefix = random.unlike(wish.prompt_tokens)
                had = _pages(master, KEPT)
                computed_s = first_s(_asked(server, (*prefix, *random.unlike(NEW_TOKENS))))
                _await_pages(master, KEPT, had + pages)
            files = [path for path in _page_files(home, KEPT) if path not in known]
            drop_cached(files)
            before = read_files(files)
        disk = disk_name(home.folder)
    return {"disk": disk, "disk_is_direct": direct, **restore_record(found)}


def measure_park(wish: ContextWish, say: Say) -> dict[str, Any]:
    """Measures conversations in turn, streams without enough memory, and what keeping costs. Raises UserError,
    PeerError, ResourceError."""
    random, tokens = wish.prompts(), wish.stream_tokens

    def rate(server: MeasuredServer) -> float:
        answers = _ask(server, [random.unlike(tokens) for _ in range(STREAMS)], tokens)
        for answer in answers:
            first_s(answer)
        return RoundFigures.of(answers, STREAMS).tokens_per_s

    def alone(server: MeasuredServer) -> float:
        return seconds_per_token([_asked(server, random.unlike(NEW_TOKENS), tokens) for _ in range(_ALONE)])

    return {
        **_measure_turns(wish, say),
        "streams": {"streams": STREAMS, "tokens": tokens}
        | streams_record(_by_setting(wish, _STREAMS, rate, say)),
        "keeping": keeping_record(_by_setting(wish, _KEEPING, alone, say)),
    }


def _by_setting(
    wish: ContextWish, settings: _Settings, figure: Callable[[MeasuredServer], float], say: Say
) -> dict[str, list[float]]:
    """Measures `figure` of a new cluster for each repeat of each setting."""
    found: dict[str, list[float]] = {name: [] for name in settings}
    for repeat in range(wish.repeats):
        order = list(settings.items())
        for name, (room, flags) in reversed(order) if repeat % 2 else order:
            say(f"repeat {repeat + 1} of {wish.repeats}: {name}")
            with own_cluster(wish.cluster(2 * wish.stream_tokens, room, *flags)) as server:
                _asked(server, wish.prompts().unlike(NEW_TOKENS))
                found[name].append(figure(server))
            say(f"  {found[name][-1]:.3g}")
    return found


def _measure_turns(wish: ContextWish, say: Say) -> dict[str, Any]:
    random, found, direct = wish.prompts(), list[PagedAnswer](), True
    with cluster_home() as home:
        cluster = wish.cluster(wish.most_tokens, MEMORY_CONVERSATIONS, *_PARK)
        with cluster_at(home, cluster) as server, admin_of(home.state) as master:
            turns = [random.unlike(wish.prompt_tokens) for _ in range(CONVERSATIONS)]
            for number, prompt in enumerate(turns, 1):
                say(f"conversation {number} of {CONVERSATIONS}: {wish.prompt_tokens} tokens")
                first_s(_asked(server, prompt))
            _await_pages(master, PARKED, 1)
            before = read_files(_page_files(home, PARKED))
            for repeat in range(wish.repeats):
                say(f"turn {repeat + 1} of {wish.repeats} of all conversations")
                # The answer is not part of the next prompt. The rest of a page is computed with the new tokens.
                own = len(turns[0]) % wish.page_tokens + NEW_TOKENS
                own_s = first_s(_asked(server, random.unlike(own)))
                turns = [(*prompt, *random.unlike(NEW_TOKENS)) for prompt in turns]
                asked = [_brought(server, master, prompt) for prompt in turns]
                page_bytes = _page_bytes(master)
                after = read_files(_page_files(home, PARKED))
                rate = fmean((before.bytes_per_s, after.bytes_per_s))
                for answer, brought in asked:
                    nbytes = -(-brought // wish.page_tokens) * page_bytes
                    apart_s = TURN_S + own_s
                    found.append(PagedAnswer(first_s(answer), answer.cached_tokens, nbytes, rate, apart_s))
                direct, before = direct and after.is_direct, after
        disk = disk_name(home.folder)
    counts = {"conversations": CONVERSATIONS, "in_memory": MEMORY_CONVERSATIONS}
    return {"disk": disk, "disk_is_direct": direct, "turns": counts | paged_record(found)}


def _ask(server: MeasuredServer, prompts: Sequence[ServePrompt], tokens: int) -> list[TimedAnswer]:
    """Sends all prompts at once."""
    with Streams(server, MonotonicClock()) as client:
        return by_clients(client, prompts, tokens, len(prompts))


def _asked(server: MeasuredServer, prompt: ServePrompt, tokens: int = 1) -> TimedAnswer:
    return _ask(server, [prompt], tokens)[0]


def _brought(server: MeasuredServer, master: MasterClient, prompt: ServePrompt) -> tuple[TimedAnswer, int]:
    """Returns the answer, and the tokens of its prompt that were on disk."""
    before = _brought_tokens(master)
    answer = _asked(server, prompt)
    return answer, _brought_tokens(master) - before


def _brought_tokens(master: MasterClient) -> int:
    totals = cast(Any, master.get("/admin/cluster")["totals"])
    return cast(int, totals["brought_tokens"])


def _machines(master: MasterClient) -> Sequence[Any]:
    return cast(Sequence[Any], master.get("/admin/cache")["machines"])


def _pages(master: MasterClient, kind: str) -> int:
    """Returns how many pages each machine has, at least."""
    return min(int(one[kind]["pages"]) for one in _machines(master))


def _page_bytes(master: MasterClient) -> int:
    """Returns the mean bytes of a parked page on all machines together."""
    parked = [one[PARKED] for one in _machines(master)]
    return sum(int(one["nbytes"]) // max(1, int(one["pages"])) for one in parked)


def _await_pages(master: MasterClient, kind: str, count: int) -> None:
    """Blocks until each machine has `count` pages. Raises PeerError."""
    deadline = time.monotonic() + _LEFT_S
    while (found := _pages(master, kind)) < count:
        if time.monotonic() >= deadline:
            raise PeerError(
                f"the machines left {found} of {count} pages on disk within {_LEFT_S:.0f} s: is there space?"
            )
        time.sleep(_POLL_S)


def _page_files(home: ClusterHome, kind: str) -> list[Path]:
    """Returns the files of KV heads of all machines."""
    return [path for path in home.folder.rglob(f"{PAGES}/{kind}/*-*") if path.stat().st_size]


def read_files(paths: Sequence[Path]) -> DiskSpeed:
    """Reads whole files past the page cache, as many at a time as a node does. Raises ReadFault, UserError."""
    sizes = {path: path.stat().st_size for path in paths}
    if not sizes:
        raise PeerError("the machines left no page on disk")
    # All threads read into the same memory: nothing looks at the bytes.
    buffer = memoryview(mmap.mmap(-1, max(sizes.values())))
    direct: list[bool] = []

    def read(path: Path) -> int:
        with DirectFile(path) as file:
            file.read(0, buffer[: sizes[path]])
            direct.append(file.is_direct)
        return sizes[path]

    done, started = 0, time.perf_counter()
    with DiskQueue() as queue:
        while not done or time.perf_counter() < started + _READ_S:
            jobs = [queue.submit("bring", size, partial(read, path)) for path, size in sizes.items()]
            done += sum(job.result(_READ_LIMIT_S) for job in jobs)
    return DiskSpeed(done / (time.perf_counter() - started), all(direct))


def drop_cached(paths: Sequence[Path]) -> None:
    """Drops files from the page cache."""
    for path in paths:
        with DirectFile(path) as file:
            file.advise("DONTNEED")


def disk_name(folder: Path) -> str:
    """Returns the device and the file system of `folder`; empty if the system does not tell."""
    device = folder.stat().st_dev
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            fields = line.split()
            if fields[2] == f"{os.major(device)}:{os.minor(device)}":
                system, source = fields[fields.index("-") + 1 :][:2]
                return f"{source} ({system})"
    return ""
