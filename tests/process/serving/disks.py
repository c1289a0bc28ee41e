"""Disks that break while somebody uses them. Linux, root."""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_FIBMAP = 1
_BLOCK = 4096
_SIZE = 64 << 20
_LOOP_GET_STATUS64, _LOOP_SET_STATUS64 = 0x4C05, 0x4C04
#: struct loop_info64 of linux/loop.h: its size, and where its lo_sizelimit is.
_INFO_BYTES, _SIZELIMIT = 232, 32
_FILLER = "filler"


class NoDisk(Exception):
    """The disk cannot be made here; the reason is for a skipped test."""


class FailingDisk:
    """A file system on the loop device `device`, mounted at `folder`."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder = folder
        self._device = device

    @contextlib.contextmanager
    def failing_from(self, path: Path, offset: int) -> Iterator[None]:
        """Fails reads and writes of the disk from this byte of the file on. A writer may hang if the file system needs
        a block of its own there. The content returns afterwards."""
        with path.open("rb") as file:
            block = fcntl.ioctl(file.fileno(), _FIBMAP, struct.pack("i", offset // _BLOCK))
        self._cut(struct.unpack("i", block)[0] * _BLOCK)
        try:
            yield
        finally:
            self._cut(0)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        filler = self.folder / _FILLER
        try:
            with filler.open("wb", buffering=0) as file:
                for size in (1 << 20, _BLOCK):
                    with contextlib.suppress(OSError):  # which is what is wanted: no space left
                        while True:
                            file.write(bytes(size))
            yield
        finally:
            filler.unlink()

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        _run("fsfreeze", "--freeze", self.folder)
        try:
            yield
        finally:
            _run("fsfreeze", "--unfreeze", self.folder)

    def _cut(self, size: int) -> None:
        """The device ends there; 0: where its file does."""
        info = bytearray(_INFO_BYTES)
        with open(self._device, "rb", buffering=0) as device:
            fcntl.ioctl(device, _LOOP_GET_STATUS64, info)
            struct.pack_into("Q", info, _SIZELIMIT, size)
            fcntl.ioctl(device, _LOOP_SET_STATUS64, bytes(info))


@contextlib.contextmanager
def mounted_disk(folder: Path, image: Path, size: int = _SIZE) -> Iterator[FailingDisk]:
    _need_root_and("mkfs.ext4", "losetup")
    with image.open("wb") as file:
        file.truncate(size)
    _try("mkfs.ext4", "-q", "-b", _BLOCK, "-O", "^has_journal", image)
    device = _try("losetup", "--find", "--show", image)
    try:
        folder.mkdir(parents=True)
        _try("mount", device, folder)
        try:
            yield FailingDisk(folder, device)
        finally:
            _run("umount", "-l", folder)
    finally:
        _run("losetup", "--detach", device)


@contextlib.contextmanager
def failing_disk(folder: Path, image: Path) -> Iterator[FailingDisk]:
    """Mounted at `folder`. Skips the test where that is impossible."""
    with _skipping(), mounted_disk(folder, image) as disk:
        yield disk


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing in `folder` can be written, as on a file system that the kernel has found damaged. Skips the test where
    that is impossible."""
    # A mount on which a file is open for writing cannot become read-only: another one of the folder does first.
    aside = folder.with_name(f"{folder.name}-aside")
    aside.mkdir()
    with _skipping():
        _need_root_and("mount")
        _try("mount", "--bind", folder, aside)
    try:
        _run("mount", "-o", "remount,bind,ro", aside)
        _run("mount", "--bind", aside, folder)
    finally:
        _run("umount", "-l", aside)
        aside.rmdir()
    try:
        yield
    finally:
        _run("umount", "-l", folder)


@contextlib.contextmanager
def _skipping() -> Iterator[None]:
    try:
        yield
    except NoDisk as error:
        pytest.skip(str(error))


def _need_root_and(*commands: str) -> None:
    if os.geteuid() != 0:
        raise NoDisk("root: needed to make a disk that breaks")
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        raise NoDisk(f"mounts: {', '.join(missing)} is needed to make a disk that breaks")


def _try(*command: object) -> str:
    """Raises NoDisk where it fails: before anything is tested."""
    try:
        return _run(*command)
    except subprocess.CalledProcessError as error:
        raise NoDisk(f"mounts: {' '.join(error.cmd)} is not possible here: {error.stderr.strip()}") from None


def _run(*command: object) -> str:
    words = [str(part) for part in command]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
