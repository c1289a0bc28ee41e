"""A lock is a file of its own: whoever may put a link in its place gets no other file opened, made or emptied."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.pack.store.locks import FileLock
from tpiedge.pack.store.presence import Presence
from tpiedge.pack.writing.target import lock_target


def in_target(path: Path) -> None:
    with lock_target(path.with_name(path.name.removeprefix(".").removesuffix(".lock")), 0.0):
        pass


TAKERS: list[Callable[[Path], object]] = [
    lambda path: FileLock(path).try_alone(),
    lambda path: FileLock(path).try_shared(),
    lambda path: FileLock(path).is_held(),
    in_target,
]


@pytest.mark.parametrize("take", TAKERS)
def test_a_link_is_not_followed(take: Callable[[Path], object], tmp_path: Path) -> None:
    precious, lock = tmp_path / "precious", tmp_path / ".pack.lock"
    precious.write_text("kept")
    lock.symlink_to(precious)
    with pytest.raises(UserError, match=r"\.pack\.lock is a link, where tpiedge keeps a lock: delete it"):
        take(lock)
    assert precious.read_text() == "kept"
    lock.unlink()
    lock.symlink_to(tmp_path / "new")
    with pytest.raises(UserError, match="is a link"):
        take(lock)
    assert not (tmp_path / "new").exists()


def test_what_is_no_file_is_no_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(UserError, match="is not a file"):
        FileLock(tmp_path / "lock").try_alone()


def test_a_lock_is_its_user_s_alone(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    assert lock.try_alone()
    assert lock.path.stat().st_mode & 0o077 == 0
    assert lock.path.read_text() == f"{os.getpid()}\n"
    lock.close()


def test_the_bits_of_a_shard_are_not_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (tmp_path / "bits").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"):
        Presence(tmp_path / "bits", 8).clear([])
    assert precious.read_text() == "kept"
