import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.pack.files import FileLock, lock_target
from tpiedge.pack.manifest import MANIFEST_NAME
from tpiedge.pack.reader import PackHold, remove_packs
from tpiedge.pack.shard_copy import Presence


@pytest.fixture
def packs(tmp_path: Path) -> list[Path]:
    """Folders with a manifest, which are packs to locks."""
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.mkdir()
        (path / MANIFEST_NAME).write_text("{}")
    return paths


def test_remove_packs_deletes_none_if_one_is_in_use(packs: list[Path]) -> None:
    first, second = PackHold(packs[1]), PackHold(packs[1])
    first.close()
    with pytest.raises(UserError, match="two: end it first"):
        remove_packs(packs)
    assert all((path / MANIFEST_NAME).exists() for path in packs)
    second.close()
    remove_packs(packs)
    assert not any(path.exists() for path in packs)


def test_pack_being_deleted_cannot_be_used(packs: list[Path]) -> None:
    deleting = os.open(packs[0] / MANIFEST_NAME, os.O_RDONLY)
    try:
        fcntl.flock(deleting, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="one is being deleted"):
            PackHold(packs[0])
    finally:
        os.close(deleting)
    PackHold(packs[0]).close()


def test_packs_work_on_file_system_without_locks(packs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs are used and deleted there; the shard store says that it cannot be there."""

    def refuse(fd: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    PackHold(packs[0]).close()
    with (
        FileLock(packs[0] / "in-use") as lock,
        pytest.raises(UserError, match=r"one has no locks.*another one"),
    ):
        lock.try_lock(fcntl.LOCK_SH)
    remove_packs(packs)
    assert not any(path.exists() for path in packs)


def test_lock_names_its_holder_and_reopens_removed_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path) as first, FileLock(path) as second:
        first.wait_alone(0.0, "busy")
        assert path.stat().st_mode & 0o077 == 0
        with pytest.raises(UserError, match=f"busy: process {os.getpid()} is at it"):
            second.wait_alone(0.0, "busy")
        late = os.open(path, os.O_RDWR)
        path.unlink()
        first.close()
        second._fd = late
        assert not second.try_alone(), "it has no name any more"
        assert second.try_alone()
        assert path.exists()


def in_target(path: Path) -> None:
    with lock_target(path.with_name(path.name.removeprefix(".").removesuffix(".lock")), 0.0):
        pass


TAKERS: list[Callable[[Path], object]] = [
    lambda path: FileLock(path).try_alone(),
    in_target,
    lambda path: Presence(path, 8).mark([], present=False),
]


@pytest.mark.parametrize("take", TAKERS)
def test_lock_file_symlink_is_not_followed(take: Callable[[Path], object], tmp_path: Path) -> None:
    precious, lock = tmp_path / "precious", tmp_path / ".pack.lock"
    precious.write_text("kept")
    lock.symlink_to(precious)
    with pytest.raises(OSError, match=r"symbolic link"):
        take(lock)
    assert precious.read_text() == "kept"
