"""Faults of page files of the KV cache, and of their disk, on one machine each."""

import contextlib
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.process.network.namespaces import MASTER
from tools.nemesis import of_processes
from tools.nemesis.scene import Scene, Seconds
from tpiedge.kv.page_folder import KEPT, PARKED

_DISK_S: Seconds = (2.0, 15.0)
_REPLACED_S: Seconds = (1.0, 8.0)
#: Answers that run leave a page within this time, unless all is on disk already.
_WRITING_S = 2.0


def disk_full(scene: Scene) -> bool:
    """Fills the disk of a machine's pages."""
    disks = scene.stage.page_disks
    return scene.break_one("page disk", disks, lambda name: disks[name].full(), _DISK_S)


def disk_errors(scene: Scene) -> bool:
    """Makes a page file unreadable, and all that lies behind it on the disk."""

    def fault(name: str) -> contextlib.AbstractContextManager[None]:
        written = [path for path in _files(scene.stage.pages[name]) if path.stat().st_blocks]
        if not written:
            raise FileNotFoundError(f"{name} has no pages")
        return scene.stage.page_disks[name].failing_from(scene.draws.choice(written), 0)

    return scene.break_one("page disk", scene.stage.page_disks, fault, _DISK_S)


def replace_folder(scene: Scene) -> bool:
    """Puts a file in the place of a machine's folder of pages. The folder comes back as it was."""
    kind = scene.draws.choice((KEPT, PARKED))

    @contextlib.contextmanager
    def fault(name: str) -> Iterator[None]:
        folder = scene.stage.pages[name] / kind
        aside = folder.with_name(f"{kind}-aside")
        folder.rename(aside)
        try:
            with contextlib.suppress(OSError):  # the disk is full
                folder.touch()
            yield
        finally:
            if folder.is_dir():  # a node made it before the file was there
                shutil.rmtree(folder)
            folder.unlink(missing_ok=True)
            aside.rename(folder)

    return scene.break_one("page folder", scene.stage.pages, fault, _REPLACED_S)


def flip_bits(scene: Scene) -> bool:
    def flip(path: Path, draws: random.Random) -> None:
        with path.open("r+b", buffering=0) as file:
            place = draws.randrange(path.stat().st_size)
            (byte,) = os.pread(file.fileno(), 1, place)
            os.pwrite(file.fileno(), bytes([byte ^ 1 << draws.randrange(8)]), place)

    return _spoil(scene, flip)


def cut_short(scene: Scene) -> bool:
    return _spoil(scene, lambda path, draws: os.truncate(path, draws.randrange(path.stat().st_size)))


def delete(scene: Scene) -> bool:
    return _spoil(scene, lambda path, _: path.unlink())


def rename(scene: Scene) -> bool:
    """Gives page files the names of others."""
    return _spoil(scene, lambda path, draws: _rename(path, draws.choice(_files(path.parents[1]))))


def kill_writer(scene: Scene) -> bool:
    """Kills a node that is writing a page, or all processes of its machine."""
    whole = scene.draws.random() < 0.5
    deadline = time.monotonic() + _WRITING_S
    while time.monotonic() < deadline:
        writing = [name for name, folder in scene.stage.pages.items() if any(folder.glob("*/*.partial"))]
        if writing:
            break
    else:
        return False
    if MASTER in writing:
        return of_processes.kill_master(scene) if whole else of_processes.kill_rank_zero(scene)
    return of_processes.kill_agent(scene, writing) if whole else of_processes.kill_node(scene, writing)


def _spoil(scene: Scene, harm: Callable[[Path, random.Random], object]) -> bool:
    """Does `harm` to about half of a machine's page files."""
    pages, draws = scene.stage.pages, scene.draws
    files = _files(pages[draws.choice(list(pages))])
    chosen = [path for path in files if draws.random() < 0.5]
    for path in chosen:
        with contextlib.suppress(OSError, ValueError):  # the file is gone or empty, or its disk is broken
            harm(path, draws)
    return bool(chosen)


def _rename(path: Path, other: Path) -> None:
    path.replace(path.with_name(other.name))


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*-*"))
