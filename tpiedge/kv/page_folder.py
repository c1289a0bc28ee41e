"""Counts and deletes a machine's page files, for its agent, the master and `tpiedge cache`. Reads no file."""

import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tpiedge.errors import cannot_write

PAGE_VERSION: Final = 1
"""Grows when the same tokens get other bytes in a page: kept pages of earlier versions are not found then."""
KEPT, PARKED = "kept", "parked"  # subfolders: pages that survive the master, and pages of this run
#: The names of a page's files (`kv/store.py`), and of those that are being written. Other files are not ours.
PAGE_FILE: Final = re.compile(r"([0-9a-f]{32})-(0|[1-9a-f][0-9a-f]*)|[0-9a-f]{16}\.partial")


@dataclass(frozen=True, slots=True)
class PageUsage:
    """Page files. A page has one or several files."""

    pages: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class PageFolder:
    """A machine's folder of page files. `keep_bytes`, `park_bytes`: how much its owner lets kept and parked pages
    take."""

    path: Path
    keep_bytes: int = 0
    park_bytes: int = 0

    def usage(self, *, clear: bool = False) -> tuple[PageUsage, PageUsage]:
        """Returns what kept and parked pages take on disk. If `clear`, deletes them; a running node misses them only
        when it looks for them. Raises UserError, DiskFull."""
        most = 0 if clear else math.inf
        kept, parked = (_usage(self.path / name, most) for name in (KEPT, PARKED))
        return kept, parked

    def clear_unusable(self) -> None:
        """Deletes parked pages, and the oldest kept pages that the owner gives no space any more. Raises UserError,
        DiskFull."""
        _usage(self.path / PARKED, 0)
        _usage(self.path / KEPT, self.keep_bytes)


def _usage(folder: Path, most: float) -> PageUsage:
    """Returns what page files take. Deletes the oldest files beyond `most` bytes."""
    pages, nbytes, found = set[str](), 0, list[tuple[int, int, str, str]]()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                match = PAGE_FILE.fullmatch(entry.name)
                if match is not None:
                    with suppress(FileNotFoundError):  # the node evicts files meanwhile
                        stat = entry.stat(follow_symlinks=False)
                        found.append((stat.st_mtime_ns, stat.st_blocks * 512, match[1] or "", entry.path))
        for _, size, page, path in sorted(found, reverse=True):
            with suppress(FileNotFoundError):
                if nbytes + size > most or not most:
                    os.unlink(path)
                nbytes += size
                pages |= {page} - {""}
    except FileNotFoundError:
        pass  # nothing was ever written
    except OSError as error:
        words = (
            f"cannot {'count' if most == math.inf else 'delete'} the page files in {folder}: {error.strerror}"
        )
        raise cannot_write(folder, error, words) from None
    return PageUsage(len(pages), nbytes)
