import contextlib
import errno
import fcntl
import os
import random
import shutil
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from tpiedge.errors import InternalError
from tpiedge.kv import sealing
from tpiedge.kv.store import PageStore

SEAL = b"s" * 32
SHAPE = 2, 4096
STRIDE = 3 * 4096
"""A section takes this, because salt and tag need a block of their own."""
LEAVING = "mkdir statvfs open pwrite pwrite pwrite fsync utime replace".split()  # noqa: SIM905
MUCH = 1 << 30
HEADS = 0, 1, 5
#: The system calls that change or read files.
CALLS = ["fsync", "mkdir", "open", "preadv", "pwrite", "replace", "scandir", "statvfs", "unlink", "utime"]


class Killed(BaseException):
    """The process ended."""


class Calls:
    """Counts file operations. From number `at` on, the operations fail with `error`, or only that one if `once`."""

    def __init__(
        self, at: int | None = None, error: BaseException | None = None, *, once: bool = False
    ) -> None:
        self.names: list[str] = []
        self.done: list[str] = []
        self._at, self._error, self._once = at, error or Killed(), once

    def __enter__(self) -> "Calls":
        self._patch = contextlib.ExitStack()
        for name in CALLS:
            self._patch.enter_context(mock.patch.object(os, name, self._counted(name, getattr(os, name))))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.close()

    def _counted(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            number = len(self.names)
            self.names.append(name)
            if self._at is not None and (number == self._at if self._once else number >= self._at):
                if name == "pwrite" and number == self._at:  # a part of it is on disk
                    fd, data, offset = arguments
                    assert isinstance(data, memoryview)
                    call(fd, data[: len(data) // 2 // 4096 * 4096], offset)
                raise self._error
            self.done.append(name)
            return None if name == "fsync" else call(*arguments, **options)

        return counted


def name_of(number: int) -> bytes:
    return bytes([number]) * 16


def section(name: bytes, head: int, shape: tuple[int, int] = SHAPE) -> NDArray[np.uint8]:
    return np.random.default_rng([*name, head]).integers(0, 256, shape, np.uint8)


def leave(store: PageStore, number: int, heads: tuple[int, ...] = HEADS) -> bytes:
    name = name_of(number)
    store.leave(name, {head: section(name, head) for head in heads})
    return name


def brings(store: PageStore, name: bytes, head: int = 0) -> bool:
    """Whether the store has the section, which must then be the one that was left."""
    into = np.zeros(SHAPE, np.uint8)
    found = store.bring(name, head, into)
    assert not found or np.array_equal(into, section(name, head))
    return found


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pages"


@pytest.fixture
def store(folder: Path) -> PageStore:
    return PageStore(folder, MUCH, SEAL)


def test_left_page_is_brought_head_by_head_and_after_a_restart(folder: Path, store: PageStore) -> None:
    name = leave(store, 1)
    for one in (store, PageStore(folder, MUCH, SEAL)):
        assert name in one
        assert one.has(name, HEADS)
        assert one.has(name, [])
        assert not one.has(name, [0, 2])
        assert [brings(one, name, head) for head in (0, 1, 2, 5, 6)] == [True, True, False, True, False]
        assert (one.count, one.nbytes) == (1, 3 * STRIDE) == (1, sum(p.stat().st_size for p in files(folder)))


def test_unknown_page_is_not_there(store: PageStore) -> None:
    assert name_of(1) not in store
    assert not store.has(name_of(1), [])
    assert not brings(store, name_of(1))


def test_heads_of_one_page_may_lie_in_several_files(folder: Path, store: PageStore) -> None:
    name = leave(store, 1, (0, 1))
    leave(store, 1, (7,))
    leave(store, 1, (2, 3))
    for one in (store, PageStore(folder, MUCH, SEAL)):
        assert one.has(name, [0, 1, 2, 3, 7])
        assert one.count == 1
        assert one.nbytes == 5 * STRIDE
        assert all(brings(one, name, head) for head in (7, 0, 3, 1, 2))


def test_node_without_heads_has_a_file_of_the_page(folder: Path, store: PageStore) -> None:
    name = leave(store, 1, ())
    for one in (store, PageStore(folder, MUCH, SEAL)):
        assert name in one
        assert one.has(name, [])
        assert not one.has(name, [0])
        assert (one.count, one.nbytes) == (1, 4096)


def test_sections_of_any_size(store: PageStore) -> None:
    """The larger ones come first, so that their bytes are in the memory that is used again."""
    for shape in [(7, 16384), (3, 5000), (1, 4096 - 47), (1, 4096 - 48), (1, 1)]:
        name = name_of(3)
        store.leave(name, {head: section(name, head, shape) for head in HEADS})
        for head in HEADS:
            into = np.empty(shape, np.uint8)
            assert store.bring(name, head, into), shape
            assert np.array_equal(into, section(name, head, shape))


def test_sections_of_two_lengths_or_with_strides_are_a_defect(folder: Path, store: PageStore) -> None:
    wide = np.zeros((4, 4096), np.uint8)
    with pytest.raises(InternalError, match="2 lengths"):
        store.leave(name_of(1), {0: wide, 1: wide[:2]})
    with pytest.raises(TypeError):
        store.leave(name_of(1), {0: wide[:, ::2]})
    assert files(folder) == []


def test_short_key_is_a_defect(folder: Path) -> None:
    with pytest.raises(InternalError, match="a key of 31 bytes"):
        PageStore(folder, MUCH, SEAL[:31])


# What is refused.


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def swapped(data: bytes) -> bytes:
    return data[STRIDE : 2 * STRIDE] + data[:STRIDE] + data[2 * STRIDE :]


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda data, bit=bit: flipped(data, bit) for bit in (0, 255, 256, 8 * 32, 8 * 8000, 8 * 8239)),
        lambda data: flipped(data, 8 * (32 + 2 * 4096)),  # of the tag
        lambda data: flipped(data, 8 * (48 + 2 * 4096)),  # of the zeros behind it
        lambda data: flipped(data, 8 * STRIDE - 1),
        lambda data: data[:-1],
        lambda data: data[:4096],
        lambda data: data[:0],
        lambda data: data[4096:],
        lambda data: bytes(len(data)),
        swapped,
    ],
)
def test_damaged_file_is_refused_and_deleted(
    folder: Path, store: PageStore, damage: Callable[[bytes], bytes]
) -> None:
    """Head 0 is read, whose section comes first, or what stands in its place."""
    name, other = leave(store, 1, (0,) if damage is not swapped else HEADS), leave(store, 2)
    [path, *_] = files(folder)
    path.write_bytes(damage(path.read_bytes()))
    assert not brings(store, name)
    assert name not in store
    assert not path.exists()
    assert brings(store, other)
    assert store.nbytes == 3 * STRIDE


@pytest.mark.fault("F9", "each flipped bit is noticed; the page is computed again")
def test_any_flipped_bit_is_refused(folder: Path, store: PageStore) -> None:
    name, small = name_of(1), np.zeros((1, 64), np.uint8)
    bits = range(8 * 4096)
    for bit in [*bits[: 8 * 128 : 5], *random.Random(1).sample(bits, 200), bits[-1]]:
        with Calls():
            store.leave(name, {0: small})
        [path] = files(folder)
        path.write_bytes(flipped(path.read_bytes(), bit))
        assert not store.bring(name, 0, small.copy()), bit


@pytest.mark.fault("F9", "a renamed file is no other page")
@pytest.mark.parametrize(
    ("old", "new"),
    [((1, (0,)), (2, (0,))), ((1, (0,)), (1, (1,))), ((1, (0, 1)), (1, (0, 2))), ((1, (0, 1)), (2, (0, 1)))],
)
def test_renamed_file_is_refused(
    folder: Path, store: PageStore, old: tuple[int, tuple[int, ...]], new: tuple[int, tuple[int, ...]]
) -> None:
    leave(store, *old)
    [path] = files(folder)
    number, heads = new
    path.rename(folder / f"{name_of(number).hex()}-{sum(1 << head for head in heads):x}")
    moved = PageStore(folder, MUCH, SEAL)
    assert moved.has(name_of(number), heads), "nothing was read"
    assert not brings(moved, name_of(number), heads[-1])
    assert files(folder) == []


def test_page_of_another_shape_is_refused(folder: Path, store: PageStore) -> None:
    for shape in [(1, 8192), (4, 2048), (2, 4095), (2, 4097), (4, 4096)]:
        name = leave(store, 1, (0,))
        assert not store.bring(name, 0, np.empty(shape, np.uint8)), shape
        assert files(folder) == []


@pytest.mark.fault("F9", "no byte of it is used; its file is deleted")
def test_page_under_another_seal_is_refused(folder: Path, store: PageStore) -> None:
    name = leave(store, 1)
    other = PageStore(folder, MUCH, b"t" * 32)
    assert name in other, "nothing was read"
    assert not brings(other, name)
    assert files(folder) == []


def test_page_of_an_earlier_version_is_refused(
    folder: Path, store: PageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sealing, "_LABEL", b"tpiedge page 0")
        name = leave(store, 1)
        assert brings(store, name)
    assert not brings(store, name)


def test_older_file_of_another_page_cannot_take_the_place_of_a_head(folder: Path, store: PageStore) -> None:
    first, second = leave(store, 1), leave(store, 2)
    one, two = files(folder)
    data = one.read_bytes()
    one.write_bytes(two.read_bytes()[:STRIDE] + data[STRIDE:])
    assert not brings(store, first)
    assert brings(store, second)


# What is on the disk.


def test_files_show_neither_keys_nor_values(folder: Path, store: PageStore) -> None:
    text = np.frombuffer(b"keys and values of a prompt tell the prompt. " * 182 + b"..", np.uint8)
    store.leave(name_of(1), {0: text.reshape(2, 4096)})
    leave(store, 2)
    told = [text.tobytes(), *(section(name_of(2), head).tobytes() for head in HEADS), SEAL]
    pieces = {one[at : at + 8] for one in told for at in range(0, len(one) - 7, 8)}
    for path in files(folder):
        data = path.read_bytes()
        assert not any(data[at : at + 8] in pieces for at in range(len(data) - 7)), path
        assert name_of(2) not in data


def test_no_key_encrypts_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nonce never repeats under a key: not for the same page, the same head, or the same folder opened again."""
    used = Counter[tuple[bytes, bytes]]()

    class Recorded:
        def __init__(self, key: bytes) -> None:
            self._key = key

        def encrypt_into(self, nonce: bytes, *_: object) -> None:
            used[self._key, nonce] += 1

    monkeypatch.setattr(sealing, "AESGCM", Recorded)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    tiny = np.zeros((1, 64), np.uint8)
    for _ in range(10):
        store = PageStore(folder, MUCH, SEAL)
        for number in range(10):
            store.leave(name_of(number % 3), dict.fromkeys(range(10), tiny))
    assert len(used) == sum(used.values()) == 1000
    assert not any(SEAL in key for key, _ in used)


def test_only_the_owner_can_read_pages(folder: Path, store: PageStore) -> None:
    mask = os.umask(0)
    try:
        leave(store, 1)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in files(folder)] == [0o600]


def test_files_of_other_programs_stay(folder: Path) -> None:
    folder.mkdir()
    zeros = "0" * 32
    others = {"notes", f"{zeros}-00", f"{zeros}-01", f"{zeros}-A", f"{'A' * 32}-1", f"{zeros[1:]}-1"}
    for other in others:
        (folder / other).write_bytes(b"x" * STRIDE)
    (folder / f"{zeros}-1").mkdir()
    store = PageStore(folder, MUCH, SEAL)
    assert (store.count, store.nbytes) == (0, 0)
    store.clear()
    assert {path.name for path in files(folder)} == {*others, f"{zeros}-1"}


@pytest.mark.parametrize("size", [0, 1, STRIDE - 1, STRIDE + 1, 2 * STRIDE - 4096, 3 * 4096])
def test_torn_and_partial_files_are_deleted_at_the_start(folder: Path, store: PageStore, size: int) -> None:
    name = leave(store, 1, (0, 1))
    os.truncate(files(folder)[0], size)
    (folder / "0123456789abcdef.partial").write_bytes(b"x")
    assert name not in PageStore(folder, MUCH, SEAL)
    assert files(folder) == []


def test_start_opens_no_file(folder: Path, store: PageStore) -> None:
    for number in range(20):
        leave(store, number, ())
    with Calls() as calls:
        assert PageStore(folder, MUCH, SEAL).count == 20
    assert calls.names == ["scandir"]


def test_page_deleted_by_another_process_is_not_there(folder: Path, store: PageStore) -> None:
    name = leave(store, 1)
    shutil.rmtree(folder)
    assert name in store, "the index does not know yet"
    assert not brings(store, name)
    assert name not in store
    assert brings(store, leave(store, 1)), "the folder is made again"


@pytest.mark.fault("F9", "parked pages of another master are deleted")
def test_pages_that_are_not_durable_end_with_their_key(folder: Path) -> None:
    with Calls() as calls:
        for _ in range(2):
            store = PageStore(folder, MUCH, SEAL, durable=False)
            leave(store, store.count)
    assert store.count == 2
    assert "fsync" not in calls.names
    assert PageStore(folder, MUCH, b"t" * 32, durable=False).count == 0
    assert files(folder) == []
    assert [path.name for path in files(folder.parent)] == [folder.name, f"{folder.name}.key"]
    assert SEAL not in (folder.parent / f"{folder.name}.key").read_bytes()


@pytest.mark.parametrize("kind", ["link", "pipe", "large"])
def test_strange_file_in_place_of_the_key_is_neither_read_nor_followed(folder: Path, kind: str) -> None:
    mark, other = folder.parent / f"{folder.name}.key", folder.parent / "other"
    other.write_bytes(b"of another program")
    if kind == "link":
        mark.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(mark)
    else:
        with mark.open("wb") as file:
            file.truncate(1 << 43)
    for count in range(2):
        store = PageStore(folder, MUCH, SEAL, durable=False)
        assert store.count == count
        leave(store, count)
    assert other.read_bytes() == b"of another program"


def test_key_is_remembered_after_the_pages_of_another_one_are_deleted(folder: Path) -> None:
    leave(PageStore(folder, MUCH, SEAL, durable=False), 1)
    with mock.patch.object(PageStore, "clear", side_effect=Killed), pytest.raises(Killed):
        PageStore(folder, MUCH, b"t" * 32, durable=False)
    assert PageStore(folder, MUCH, b"t" * 32, durable=False).count == 0


def test_cleared_store_is_empty(folder: Path, store: PageStore) -> None:
    leave(store, 1)
    leave(store, 2)
    store.clear()
    assert (files(folder), store.count, store.nbytes) == ([], 0, 0)


# Room.


def test_least_recently_used_page_goes_first(folder: Path, store: PageStore) -> None:
    store.limit_bytes = 3 * STRIDE
    a, b, c = (leave(store, number, (0,)) for number in (1, 2, 3))
    store.use([name_of(9), a])
    d = leave(store, 4, (0,))
    assert [name in store for name in (a, b, c, d)] == [True, False, True, True]
    assert len(files(folder)) == 3
    store.clear()
    assert store.evicted == 1


def test_order_of_use_survives_a_restart_and_a_clock_set_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**18, 0, -(10**12)))
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))
    store = PageStore(folder, MUCH, SEAL)
    names = [leave(store, number, (0,)) for number in range(8)]
    random.Random(1).shuffle(names)
    store.use(names[:5])
    store = PageStore(folder, MUCH, SEAL)
    store.use(names[5:])
    store = PageStore(folder, 4 * STRIDE, SEAL)
    assert [name for name in names if name in store] == names[4:]
    assert (len(files(folder)), store.evicted) == (4, 4)


def test_page_above_the_limit_is_refused_and_evicts_nothing(folder: Path, store: PageStore) -> None:
    store.limit_bytes = 2 * STRIDE
    name = leave(store, 1, (0,))
    with pytest.raises(OSError, match="no room") as caught:
        leave(store, 2)
    assert caught.value.errno == errno.ENOSPC
    assert brings(store, name)
    assert store.nbytes == STRIDE


@pytest.mark.parametrize(
    ("free", "left"),
    [
        (1 << 40, 3),
        (MUCH + STRIDE, 3),
        (MUCH, 2),  # one goes for another
        (MUCH - STRIDE, 1),  # nothing but the new one
        (MUCH - STRIDE - 1, 0),  # no room, so the other pages stay
    ],
)
def test_disk_that_is_nearly_full_is_left_its_reserve(
    folder: Path, store: PageStore, monkeypatch: pytest.MonkeyPatch, free: int, left: int
) -> None:
    first = [leave(store, number, (0,)) for number in (1, 2)]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: mock.Mock(total=1 << 42, free=free))
    with pytest.raises(OSError, match="no room") if not left else contextlib.nullcontext():
        leave(store, 3, (0,))
    assert len(files(folder)) == (left or 2)
    assert sum(name in store for name in first) == (left - 1 if left else 2)


def test_small_disk_keeps_a_tenth_free(store: PageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, fits in [(STRIDE + 100_000, True), (STRIDE + 99_999, False)]:
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: mock.Mock(total=1_000_000, free=free))
        with contextlib.nullcontext() if fits else pytest.raises(OSError, match="no room"):
            leave(store, 1, (0,))
        store.clear()


# Failures.


@pytest.mark.fault("F6", "a page that cannot be written is computed again; nothing is left")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("at", range(1, len(LEAVING)))
def test_failed_leave_raises_and_leaves_nothing(
    folder: Path, store: PageStore, at: int, once: bool, code: int
) -> None:
    """One file operation fails, or all from there on, so that what was written cannot be deleted either."""
    old = leave(store, 1)
    with Calls(at, OSError(code, os.strerror(code)), once=once) as calls, pytest.raises(OSError) as caught:
        leave(store, 2)
    assert (calls.names[at], caught.value.errno) == (LEAVING[at], code)
    assert (name_of(2) in store, store.count, store.nbytes) == (False, 1, 3 * STRIDE)
    if once:
        assert [path.name[:32] for path in files(folder)] == [old.hex()]
    assert brings(store, old)
    assert brings(store, leave(store, 2))
    assert not any(path.suffix for path in files(folder)) or not once
    PageStore(folder, MUCH, SEAL)
    assert not any(path.suffix for path in files(folder))


@pytest.mark.fault("F7", "a page on disk is whole, or not there")
def test_leave_killed_between_two_operations_leaves_a_whole_page_or_none(folder: Path) -> None:
    """The limit has the third page evict the first."""
    found = []
    for at in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        store = PageStore(folder, 2 * 3 * STRIDE, SEAL)
        leave(store, 1)
        old = leave(store, 2)
        with Calls(at) as calls, contextlib.suppress(Killed):
            leave(store, 3)
        store = PageStore(folder, MUCH, SEAL)
        assert all(
            path.name[:32] in {name_of(number).hex() for number in (1, 2, 3)} for path in files(folder)
        )
        assert all(brings(store, old, head) for head in HEADS)
        whole = [brings(store, name_of(3), head) for head in HEADS]
        assert len(set(whole)) == 1
        found.append(whole[0])
        if len(calls.names) == at:
            break
    assert found == sorted(found)
    assert found.index(True) == 2 + LEAVING.index("replace"), "an unlink of the evicted page goes before"


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("call", ["open", "preadv"])
def test_page_that_cannot_be_read_for_a_moment_stays(
    folder: Path, store: PageStore, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    name, other = leave(store, 1), leave(store, 2)

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        assert not brings(store, name)
    assert all(brings(store, one) for one in (name, other))
    assert brings(PageStore(folder, MUCH, SEAL), name)


def test_read_only_disk_still_brings(store: PageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _ = leave(store, 1), leave(store, 2)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    store.use([name])
    assert brings(store, name)


def test_file_system_without_o_direct(
    folder: Path, store: PageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, command: int, flags: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert brings(store, leave(store, 1))


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_file_system_that_refuses_direct_writes(
    store: PageStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    pwrite = os.pwrite

    def write(fd: int, data: memoryview, offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(code, os.strerror(code))
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    assert all(brings(store, leave(store, 1), head) for head in HEADS)


def test_write_that_is_refused_either_way_is_an_error(
    store: PageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [OSError(errno.EINVAL, "Invalid argument")] * 2
    monkeypatch.setattr(os, "pwrite", mock.Mock(side_effect=refusals))
    with pytest.raises(OSError, match="Invalid argument"):
        leave(store, 1)


def test_short_writes_and_reads(store: PageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:1009], offset))
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:1009]], at))
    assert all(brings(store, leave(store, 1), head) for head in HEADS)


# Threads.


def test_questions_wait_for_no_disk(store: PageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other pages are asked for, brought and left while one is being written."""
    old, begun, done = leave(store, 1), threading.Event(), threading.Event()
    fsync = os.fsync

    def wait(fd: int) -> None:
        if threading.current_thread() is writer:
            begun.set()
            assert done.wait(60)
        fsync(fd)

    writer = threading.Thread(target=leave, args=(store, 2))
    monkeypatch.setattr(os, "fsync", wait)
    writer.start()
    assert begun.wait(60)
    assert old in store
    assert store.has(old, HEADS)
    assert name_of(2) not in store
    assert store.nbytes == 2 * 3 * STRIDE, "its room is taken"
    assert brings(store, old)
    assert brings(store, leave(store, 3))
    done.set()
    writer.join(60)
    assert brings(store, name_of(2))


def test_threads_leave_and_bring_within_the_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    store = PageStore(folder, 8 * STRIDE, SEAL)
    problems = list[BaseException]()

    def work(seed: int) -> None:
        choice = random.Random(seed)
        try:
            for _ in range(60):
                name = name_of(choice.randrange(12))
                if choice.random() < 0.5:
                    store.leave(name, {0: section(name, 0)})
                else:
                    brings(store, name)
                assert store.nbytes <= 8 * STRIDE
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    again = PageStore(folder, MUCH, SEAL)
    assert again.nbytes <= 8 * STRIDE
    assert all(
        brings(again, name_of(number)) == (name_of(number) in again)
        for number in range(12)
        if name_of(number) in again
    )


# Everything at once.


class Folder(RuleBasedStateMachine):
    """Pages of up to three heads and several files, beside a list of those that must be there."""

    numbers = st.integers(0, 5)
    some_heads = st.sets(st.sampled_from(HEADS)).map(lambda heads: tuple(sorted(heads)))

    @initialize()
    def begin(self) -> None:
        self.root = tempfile.TemporaryDirectory()
        self.folder = Path(self.root.name) / "pages"
        self.store = PageStore(self.folder, MUCH, SEAL)
        #: The files of each page, by their heads, and what happened to them; the least recently used page first.
        self.pages: dict[bytes, dict[tuple[int, ...], Literal["whole", "flipped", "gone"]]] = {}

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.root.cleanup()

    def path(self, name: bytes, heads: tuple[int, ...]) -> Path:
        return self.folder / f"{name.hex()}-{sum(1 << head for head in heads):x}"

    def nbytes(self) -> int:
        return sum(max(4096, len(heads) * STRIDE) for held in self.pages.values() for heads in held)

    def fit(self, room: int) -> None:
        while self.nbytes() > room and self.pages:
            del self.pages[next(iter(self.pages))]

    def left(self, number: int, heads: tuple[int, ...]) -> None:
        name = name_of(number)
        self.pages[name] = {**self.pages.pop(name, {}), heads: "whole"}

    def opened(self) -> None:
        """The store is opened again: it sees which files are there, but not what is in them."""
        limit = self.store.limit_bytes
        there = set(files(self.folder))
        for name, held in list(self.pages.items()):
            self.pages[name] = {
                heads: state for heads, state in held.items() if self.path(name, heads) in there
            }
            if not self.pages[name]:
                del self.pages[name]
        self.store = PageStore(self.folder, limit, SEAL)
        self.fit(limit)

    @rule(number=numbers, heads=some_heads)
    def leave(self, number: int, heads: tuple[int, ...]) -> None:
        needed = max(4096, len(heads) * STRIDE)
        if needed > self.store.limit_bytes:
            with Calls(), pytest.raises(OSError, match="no room"):
                leave(self.store, number, heads)
            return
        self.fit(self.store.limit_bytes - needed)
        with Calls():
            leave(self.store, number, heads)
        self.left(number, heads)

    @rule(number=numbers, heads=some_heads, at=st.integers(0, 12), ends=st.booleans(), once=st.booleans())
    def interrupted(self, number: int, heads: tuple[int, ...], at: int, ends: bool, once: bool) -> None:
        """An operation fails or the process ends there; then the store is opened again."""
        error = Killed() if ends else OSError(errno.EIO, "fails")
        with Calls(at, error, once=once and not ends) as calls, contextlib.suppress(Killed, OSError):
            leave(self.store, number, heads)
        if "replace" in calls.done:
            self.left(number, heads)
        self.opened()

    @rule(number=numbers, head=st.sampled_from(HEADS))
    def bring(self, number: int, head: int) -> None:
        name = name_of(number)
        found = brings(self.store, name, head)
        states = {state for heads, state in self.pages.get(name, {}).items() if head in heads}
        assert found or states != {"whole"}
        assert not found or "whole" in states
        if states and not found:
            del self.pages[name]

    @rule(numbers=st.lists(numbers))
    def use(self, numbers: list[int]) -> None:
        for name in map(name_of, numbers):
            if name in self.pages:
                self.pages[name] = self.pages.pop(name)
        self.store.use(map(name_of, numbers))

    @precondition(lambda self: self.pages)
    @rule(data=st.data(), bit=st.integers(0, 8 * STRIDE - 1), deleted=st.booleans())
    def damage(self, data: st.DataObject, bit: int, deleted: bool) -> None:
        """A bit flips in each section, or the file is deleted."""
        name = data.draw(st.sampled_from(list(self.pages)))
        heads = data.draw(st.sampled_from(list(self.pages[name])))
        path = self.path(name, heads)
        if self.pages[name][heads] != "whole" or not heads:
            return
        content, used = path.read_bytes(), path.stat()
        if deleted:
            path.unlink()
        else:
            parts = (content[at : at + STRIDE] for at in range(0, len(content), STRIDE))
            path.write_bytes(b"".join(flipped(part, bit) for part in parts))
            os.utime(path, ns=(used.st_mtime_ns, used.st_mtime_ns))
        self.pages[name][heads] = "gone" if deleted else "flipped"

    @rule()
    def reopen(self) -> None:
        self.opened()

    @rule(sections=st.integers(0, 9))
    def limit(self, sections: int) -> None:
        self.store.limit_bytes = sections * STRIDE

    @invariant()
    def index_is_as_it_must_be(self) -> None:
        assert [name for name in map(name_of, range(6)) if name in self.store] == sorted(self.pages)
        assert (self.store.count, self.store.nbytes) == (len(self.pages), self.nbytes())
        for name, held in self.pages.items():
            assert self.store.has(name, {head for heads in held for head in heads})
        there = {
            self.path(name, heads)
            for name, held in self.pages.items()
            for heads in held
            if held[heads] != "gone"
        }
        assert there == set(files(self.folder))


Folder.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestFolder = Folder.TestCase
