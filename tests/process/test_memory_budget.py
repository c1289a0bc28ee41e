"""--memory is a promise: in a control group that allows no more, with page cache and libraries counted, `tpiedge run`
works, and works as fast; nothing is left of a run that is stopped; and a disk that breaks is named. Linux, root."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.command import COMMAND, Started, run_command
from tests.process.serving.disks import failing_disk
from tpiedge.errors import UserError
from tpiedge.lab.memory_group import memory_group
from tpiedge.pack.layout import ALIGN

pytestmark = pytest.mark.timeout(400)  # a disk that others use

MODEL = ("--model", "demo", "--ignore-eos", "--threads", 1, "--json")
TOKENS = 24
NO_LIMIT = 1 << 40
#: Below the limit, fewer major faults than so many times those of a run without one: the program stays in memory.
THRASHING = 4
#: A budget that is far too large for a node keeps weights out of memory.
USED = 0.75
RESOURCE = 4

#: $0 is mounted over $1 for this process alone, which enters the group $2.
_ENTER = 'mount --bind "$0" "$1" && echo $$ > "$2" && shift 2 && exec "$@"'


@dataclass(frozen=True)
class Measured:
    """A run, the most its group held, and its major faults: how often a page of a library came from disk."""

    record: dict
    peak_bytes: int
    oom_kills: int
    faults: int


@pytest.fixture(scope="module")
def _groups() -> None:
    """Skips where there are none."""
    try:
        with memory_group(NO_LIMIT):
            return
    except UserError as error:
        pytest.skip(f"groups: {error}")


@pytest.fixture(scope="module")
def library(_groups: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """torch's largest library, and a copy of it: pages that another process has mapped are charged to that one."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    original = Path(found.origin).parent / "lib" / "libtorch_cpu.so"
    copy = tmp_path_factory.mktemp("library") / original.name
    shutil.copyfile(original, copy)
    private = ["unshare", "-m", "mount", "--bind", str(copy), str(original)]
    if (ended := subprocess.run(private, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"mounts: no private mounts here: {ended.stderr.strip()}")
    yield copy, original
    copy.unlink()


def forget(path: Path) -> None:
    """Nothing of the file stays in memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_below(limit_bytes: int, library: tuple[Path, Path], *arguments: object) -> Measured:
    """`tpiedge run ARGUMENTS` in a group of its own; torch is not in memory when it starts."""
    forget(library[0])
    with memory_group(limit_bytes) as group:
        paths = [*map(str, library), str(group.members_file)]
        command = ["unshare", "-m", "sh", "-c", _ENTER, *paths, COMMAND, "run", *map(str, arguments)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert ended.returncode == 0, f"{ended.stderr}\nkilled for memory: {group.use().oom_kills}"
        use = group.use()
        return Measured(json.loads(ended.stdout), use.peak_bytes, use.oom_kills, group.counter("pgmajfault"))


def prompt(tokens: int) -> tuple[object, ...]:
    return ("--prompt-ids", ",".join(str(5 + place % 90) for place in range(tokens)))


def least_megabytes(*arguments: object) -> float:
    """Returns the least memory per node that a refusal names."""
    ended = run_command("run", *arguments, "--memory", "64MB")
    assert ended.status == RESOURCE
    least = re.findall(r"node \d+ needs at least ([\d.]+) MB", ended.err)
    assert least, ended.err
    return max(map(float, least))


@pytest.mark.parametrize(("nodes", "tokens"), [(2, 5)])
@pytest.mark.fault("P15", "the least memory that a refusal names is enough")
def test_the_smallest_budget_is_enough_and_does_not_thrash(library, nodes: int, tokens: int):
    """All processes of the run share a limit of so many budgets: the parent counts as a part of rank 0."""
    arguments = (*MODEL, *prompt(tokens), "--max-tokens", TOKENS, "--nodes", nodes)
    least = least_megabytes(*arguments)
    limit = int(nodes * least * 1e6)
    free = run_below(NO_LIMIT, library, *arguments)
    bound = run_below(limit, library, *arguments, "--memory", f"{least:.1f}MB")
    assert bound.record["token_ids"] == free.record["token_ids"]
    assert bound.oom_kills == 0
    assert USED * limit < bound.peak_bytes <= limit
    assert bound.faults < THRASHING * free.faults
    for node, share in zip(bound.record["nodes"], bound.record["plan"]["shares"], strict=True):
        assert node["peak_rss_bytes"] <= share["predicted_bytes"] <= least * 1e6
        # While the KV cache is empty, weights may have its place.
        assert node["weight_bytes"] <= share["weight_bytes"] + share["kv_bytes"]


def alter(path: Path) -> None:
    with path.open("r+b") as file:
        for offset in range(0, path.stat().st_size, ALIGN):
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 1]))


def cut(path: Path) -> None:
    os.truncate(path, 0)


def largest_blob(pack: Path) -> Path:
    return max((pack / "blobs").iterdir(), key=lambda path: path.stat().st_size)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "pack"
    packed = run_command("pack", "demo", "--out", folder)
    assert packed.status == 0, packed.err
    return folder


@pytest.fixture
def streaming(start, original: Path):
    """Copies a pack to a folder and answers from there with weights that stream: every sweep reads them again.
    Returns the command, in the middle of its answer, and the largest of its files."""

    def begin(folder: Path) -> tuple[Started, Path]:
        pack = shutil.copytree(original, folder)
        os.sync()
        flags = ("--pin", "none", "--max-tokens", 1000, "--ignore-eos", "--threads", 1)
        command = start("run", "--model", pack, "--raw", "--prompt", "Once upon a time", *flags)
        command.wait_for_output()
        return command, largest_blob(pack)

    return begin


def error_of(command: Started) -> str:
    ended = command.finish()
    assert ended.status == RESOURCE
    (line,) = (line for line in ended.err.splitlines() if not line.startswith("loading "))
    return line


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (cut, r"cannot read \d+ bytes at offset \d+ of {}: the file ends before"),
        (alter, r".*\d+.* of {} is damaged \(its checksum differs\)"),
    ],
    ids=["cut", "altered"],
)
@pytest.mark.fault("F6", "an error with file and offset, never other numbers")
def test_error_names_weight_file_changed_during_run(streaming, tmp_path: Path, harm, words: str):
    command, blob = streaming(tmp_path / "pack")
    harm(blob)
    assert re.search(words.format(re.escape(str(blob))), error_of(command))


def test_disk_error_during_a_run_names_file_and_offset(streaming, tmp_path: Path):
    with failing_disk(tmp_path / "disk", tmp_path / "image") as disk:
        command, blob = streaming(tmp_path / "disk" / "pack")
        # Of that file, or of one that is behind it on the disk.
        words = (
            rf"cannot read \d+ bytes at offset \d+ of {re.escape(str(blob.parent))}/\w+: Input/output error$"
        )
        with disk.failing_from(blob, 0):
            assert re.search(words, error_of(command))
