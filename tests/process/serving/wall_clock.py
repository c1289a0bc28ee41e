"""The time of day of single processes, which a test sets. Linux, a C compiler."""

import shutil
import struct
import subprocess
from pathlib import Path

from tests.process.command import COMMAND

_COMPILERS = ("gcc", "clang")


def why_no_shim() -> str | None:
    """Returns the reason why `build_shim` cannot work here; None if it can."""
    if not any(map(shutil.which, _COMPILERS)):
        return "compiler: no C compiler: apt-get install gcc"
    return None


def build_shim(folder: Path) -> Path:
    compiler = next(filter(None, map(shutil.which, _COMPILERS)))
    library = folder / "wall_clock.so"
    source = Path(__file__).with_name("wall_clock.c")
    subprocess.run(
        [compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", source, "-o", library], check=True
    )
    return library


class WallClock:
    """The clock of all processes that `program` starts; `path` is a file for it."""

    def __init__(self, shim: Path, path: Path) -> None:
        self._path = path
        #: `tpiedge`, going by this clock.
        self.program: tuple[object, ...] = (
            "env", f"LD_PRELOAD={shim}", f"TPIEDGE_NODE_CLOCK_SHIFT={path}", COMMAND,
        )  # fmt: skip
        self.shift(0)

    def shift(self, seconds: int) -> None:
        """Sets the difference from the real time of day."""
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.write(struct.pack("i", seconds))
