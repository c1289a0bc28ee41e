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

__all__ = ["FailingDisk", "failing_disk", "read_only"]

_FIBMAP = 1
_BLOCK = 4096
_SIZE = 64 << 20


class FailingDisk:
    """A file system in the file `image`."""

    def __init__(self, image: Path, device: str) -> None:
        self._image = image
        self._device = device

    def fail_from(self, path: Path, offset: int) -> None:
        """Whatever reads or writes the disk where this byte of the file is, or behind it, meets an I/O error."""
        with path.open("rb") as file:
            block = fcntl.ioctl(file.fileno(), _FIBMAP, struct.pack("i", offset // _BLOCK))
        os.truncate(self._image, struct.unpack("i", block)[0] * _BLOCK)
        _run("losetup", "--set-capacity", self._device)


@contextlib.contextmanager
def failing_disk(folder: Path, image: Path) -> Iterator[FailingDisk]:
    """Mounted at `folder`. Skips the test where that is impossible."""
    _need_root_and("mkfs.ext4", "losetup")
    with image.open("wb") as file:
        file.truncate(_SIZE)
    _try("mkfs.ext4", "-q", "-b", _BLOCK, "-O", "^has_journal", image)
    device = _try("losetup", "--find", "--show", image)
    try:
        folder.mkdir(parents=True)
        _try("mount", device, folder)
        try:
            yield FailingDisk(image, device)
        finally:
            _run("umount", "-l", folder)
    finally:
        _run("losetup", "--detach", device)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Whoever opens something in `folder` from now on cannot write it, as on a file system that the kernel has
    found damaged. Skips the test where that is impossible."""
    _need_root_and("mount")
    _try("mount", "--bind", folder, folder)
    try:
        _run("mount", "-o", "remount,bind,ro", folder)
        yield
    finally:
        _run("umount", "-l", folder)


def _need_root_and(*commands: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("root: needed to make a disk that breaks")
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        pytest.skip(f"mounts: {', '.join(missing)} is needed to make a disk that breaks")


def _try(*command: object) -> str:
    """Skips the test where it fails: before anything is tested."""
    try:
        return _run(*command)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"mounts: {' '.join(error.cmd)} is not possible here: {error.stderr.strip()}")


def _run(*command: object) -> str:
    words = [str(part) for part in command]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
