"""Faults of one machine's disk, memory and clock, each for a while."""

import contextlib
import os
from collections.abc import Iterator

from tools.nemesis.scene import Scene, Seconds
from tools.nemesis.stage import NO_LIMIT

_DISK_S: Seconds = (2.0, 15.0)
_MEMORY_S: Seconds = (0.5, 10.0)
_CLOCK_S: Seconds = (0.5, 10.0)
#: Beside what the kernel cannot take back; importing torch takes more than the second.
_MARGIN = (1 << 20, 60 << 20)
_HOUR_S = 3600


def disk_full(scene: Scene) -> bool:
    """No byte can be written to a worker's cache."""
    disks = scene.stage.disks
    return scene.break_one("disk", disks, lambda name: disks[name].full(), _DISK_S)


def disk_errors(scene: Scene) -> bool:
    """Makes a part of the weights on a worker's disk unreadable."""

    def fault(name: str) -> contextlib.AbstractContextManager[None]:
        disk = scene.stage.disks[name]
        blobs = sorted((disk.folder / "shards" / "blobs").iterdir())
        path = scene.draws.choice([blob for blob in blobs if blob.stat().st_blocks])
        with path.open("rb") as file:
            first = os.lseek(file.fileno(), 0, os.SEEK_DATA)
        return disk.failing_from(path, first)

    return scene.break_one("disk", scene.stage.disks, fault, _DISK_S)


def little_memory(scene: Scene) -> bool:
    """A worker's agent and nodes may take hardly more memory than they have."""
    margin = scene.draws.randint(*_MARGIN)

    @contextlib.contextmanager
    def fault(name: str) -> Iterator[None]:
        group = scene.stage.groups[name]
        group.limit(group.held_bytes + margin)
        try:
            yield
        finally:
            group.limit(NO_LIMIT)

    return scene.break_one("memory", scene.stage.groups, fault, _MEMORY_S)


def other_time(scene: Scene) -> bool:
    """The time of day of a worker, or of the master, jumps by up to an hour, and back."""
    seconds = scene.draws.randint(-_HOUR_S, _HOUR_S)

    @contextlib.contextmanager
    def fault(name: str) -> Iterator[None]:
        clock = scene.stage.clocks[name]
        clock.shift(seconds)
        try:
            yield
        finally:
            clock.shift(0)

    return scene.break_one("clock", scene.stage.clocks, fault, _CLOCK_S)
