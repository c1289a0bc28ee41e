"""Counts and deletes a machine's page files, for its agent, the master and `tpiedge cache`. Reads no file."""

import os
import re
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
        kept, parked = (_usage(self.path / name, clear=clear) for name in (KEPT, PARKED))
        return kept, parked

    def clear_unusable(self) -> None:
        """Deletes parked pages, and kept pages if the owner gives them no space any more. Raises UserError,
        DiskFull."""
        for name in (PARKED,) if self.keep_bytes else (PARKED, KEPT):
            _usage(self.path / name, clear=True)


def _usage(folder: Path, *, clear: bool) -> PageUsage:
    pages, nbytes = set[str](), 0
    try:
        with os.scandir(folder) as entries:
            for entry in list(entries):
                found = PAGE_FILE.fullmatch(entry.name)
                if found is None:
                    continue
                try:
                    size = entry.stat(follow_symlinks=False).st_blocks * 512
                    if clear:
                        os.unlink(entry.path)
                except FileNotFoundError:  # the node evicts files meanwhile
                    continue
                nbytes += size
                if found[1]:
                    pages.add(found[1])
    except FileNotFoundError:
        pass  # nothing was ever written
    except OSError as error:
        words = f"cannot {'delete' if clear else 'count'} the page files in {folder}: {error.strerror}"
        raise cannot_write(folder, error, words) from None
    return PageUsage(len(pages), nbytes)
