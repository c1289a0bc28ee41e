"""A pack that somebody uses is not deleted."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from tpiedge.errors import UserError
from tpiedge.pack.manifest import MANIFEST_NAME
from tpiedge.pack.store.locks import FileLock
from tpiedge.pack.use import PackHold, remove_packs


@pytest.fixture
def packs(tmp_path: Path) -> list[Path]:
    """As far as locks see, folders with a manifest are packs."""
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.mkdir()
        (path / MANIFEST_NAME).write_text("{}")
    return paths


def test_one_that_is_used_keeps_all(packs: list[Path]) -> None:
    hold = PackHold(packs[1])
    with pytest.raises(UserError, match="two: end it first"):
        remove_packs(packs)
    assert all((path / MANIFEST_NAME).exists() for path in packs)
    hold.close()
    remove_packs(packs)
    assert not any(path.exists() for path in packs)


def test_several_may_use_one(packs: list[Path]) -> None:
    first, second = PackHold(packs[0]), PackHold(packs[0])
    first.close()
    with pytest.raises(UserError, match="end it first"):
        remove_packs(packs)
    second.close()


def test_a_forgotten_hold_ends(packs: list[Path]) -> None:
    PackHold(packs[0])
    remove_packs(packs)


def test_one_that_is_being_deleted_is_not_used(packs: list[Path]) -> None:
    deleting = os.open(packs[0] / MANIFEST_NAME, os.O_RDONLY)
    try:
        fcntl.flock(deleting, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="one is being deleted"):
            PackHold(packs[0])
    finally:
        os.close(deleting)
    PackHold(packs[0]).close()


def test_one_that_was_deleted_before_its_lock_was_taken(
    packs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def late(fd: int, kind: int) -> None:
        (packs[0] / MANIFEST_NAME).unlink()
        flock(fd, kind)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(UserError, match="one is being deleted"):
        PackHold(packs[0])


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks(packs: list[Path], monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Packs are used and deleted there; the shard store says that it cannot be there."""

    def refuse(fd: int, kind: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    PackHold(packs[0]).close()
    with (
        FileLock(packs[0] / "in-use") as lock,
        pytest.raises(UserError, match=r"one has no locks.*another one"),
    ):
        lock.try_shared()
    remove_packs(packs)
    assert not any(path.exists() for path in packs)


def test_a_lock_that_fails_otherwise_is_no_file_system_without_locks(
    packs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, kind: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="Input/output error"):
        PackHold(packs[0])
