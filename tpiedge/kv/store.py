"""Keeps pages of the KV cache on disk, sealed and within a limit.

A file has one page's sections of one or more KV heads, each a whole number of 4 KiB blocks. A section has a head's
extents (`kv/cache.py`), sealed with the names of page and head, and is read by itself. A file without sections says
that a node without heads left the page. In a file's name NAME-HEADS, bit i of HEADS stands for head i; both are
hexadecimal. A file is called `*.partial` until it is complete. Its time of modification orders it by use.

The index may name files that were deleted or damaged meanwhile. No method does I/O while it holds the lock.
"""

import contextlib
import errno
import hashlib
import mmap
import os
import secrets
import shutil
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpiedge.errors import InternalError, TpiedgeError
from tpiedge.kv.page_folder import PAGE_FILE
from tpiedge.kv.sealing import SEAL_BYTES, Seal
from tpiedge.memory.reader import DirectFile
from tpiedge.pack.files import DIRECT_REFUSED, Descriptor
from tpiedge.pack.layout import ALIGN, whole_pages
from tpiedge.units import GIB

_ABOUT: Final = struct.Struct("<16sIII")  # name, head, extents, bytes of an extent


class _PageFile(NamedTuple):
    name: bytes
    heads: int  # bit i: head i
    nbytes: int  # a file without sections counts, too: it has an inode

    @property
    def file_name(self) -> str:
        return f"{self.name.hex()}-{self.heads:x}"


class _NewFile(Descriptor):
    """A new file that only its owner can read, written past the page cache if possible."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._direct = self.set_direct(True)

    def write(self, offset: int, data: memoryview) -> None:
        while data:
            try:
                count = os.pwrite(self._fd, data, offset)
            except OSError as error:
                if not self._direct or error.errno not in DIRECT_REFUSED:
                    raise
                count, self._direct = 0, self.set_direct(False)
            offset, data = offset + count, data[count:]

    def sync(self) -> None:
        os.fsync(self._fd)
        if not self._direct:
            self.advise("DONTNEED")


class PageStore:
    """The page files in `folder`, sealed with the key `seal`. Evicts the least recently used pages, at the start and
    when a page is left. Leaves a tenth of the disk free, at most 1 GiB. If not `durable`, pages of another key are
    deleted at the start, and a power cut may spoil pages. Any thread may call the methods, but only one process may
    leave pages. Memory: 400 bytes per page, and a buffer for one section per thread."""

    def __init__(self, folder: Path, limit_bytes: int, seal: bytes, *, durable: bool = True) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.evicted = 0  # pages
        self._seal, self._durable = Seal(seal), durable
        self._lock = threading.Lock()
        self._local = threading.local()
        self._pages = OrderedDict[bytes, tuple[_PageFile, ...]]()  # the least recently used first
        self._nbytes = 0
        self._used_ns = 0
        with contextlib.suppress(OSError):  # nothing was left here before
            self._scan()
        if not durable:
            self._end_other_keys(seal)
        self.limit(limit_bytes)

    def __contains__(self, name: bytes) -> bool:
        """Whether the index has a file of the page. Does no I/O."""
        return name in self._pages

    @property
    def count(self) -> int:
        return len(self._pages)

    @property
    def nbytes(self) -> int:
        """The bytes of all files, those being written too."""
        return self._nbytes

    def has(self, name: bytes, heads: Iterable[int]) -> bool:
        """Whether the index has the page with all `heads`. Does no I/O."""
        files = self._pages.get(name, ())
        return bool(files) and all(any(file.heads >> head & 1 for file in files) for head in heads)

    def leave(self, name: bytes, sections: Mapping[int, NDArray[np.uint8]]) -> None:
        """Writes a page's sections, each C-contiguous [extents, bytes], by KV head. After a power cut a durable file
        is whole, or not there. Raises OSError and then leaves no new file."""
        heads, lengths = sorted(sections), {len(_flat(section)) for section in sections.values()}
        if len(lengths) > 1:
            raise InternalError(f"sections of {len(lengths)} lengths in a page")
        stride = max(map(_stride, lengths), default=0)
        file = _PageFile(name, sum(1 << head for head in heads), max(ALIGN, stride * len(heads)))
        partial = self.folder / (secrets.token_hex(8) + ".partial")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._reserve(file.nbytes)
        try:
            with _NewFile(partial) as new:
                buffer = self._buffer(stride)
                for place, head in enumerate(heads):
                    self._seal.close(_flat(sections[head]), _about(name, head, sections[head]), buffer)
                    new.write(place * stride, buffer)
                if self._durable:
                    new.sync()
            self._touch(partial)
            partial.replace(self.folder / file.file_name)
        except BaseException:
            with self._lock:
                self._nbytes -= file.nbytes
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        with self._lock:
            self._nbytes -= file.nbytes
            self._add(file)

    def bring(self, name: bytes, head: int, into: NDArray[np.uint8]) -> bool:
        """Fills `into`, C-contiguous [extents, bytes], with a page's section. Otherwise returns False, leaves `into` in
        any state, and deletes the page if it is torn or altered."""
        for file in self._pages.get(name, ()):
            if file.heads >> head & 1:
                return self._read(file, head, into)
        return False

    def use(self, names: Iterable[bytes]) -> None:
        """Counts pages as used, one after the other."""
        for name in names:
            with self._lock:
                files = self._pages.get(name, ())
                if files:
                    self._pages.move_to_end(name)
            for file in files:
                with contextlib.suppress(OSError):  # the order after a restart matters less than the page
                    self._touch(self.folder / file.file_name)

    def limit(self, limit_bytes: int) -> None:
        """Changes `limit_bytes`, and evicts what is beyond."""
        self.limit_bytes = limit_bytes
        with self._lock:
            evicted = self._evict(limit_bytes)
        self._delete(evicted)

    def clear(self) -> None:
        """Deletes all pages."""
        with self._lock:
            evicted = self._evict(-1)
        self._delete(evicted)

    def _scan(self) -> None:
        """Finds the pages. Deletes torn files and those of killed writers; knows no other files."""
        found = list[tuple[int, _PageFile]]()
        with os.scandir(self.folder) as entries:
            for entry in entries:
                match = PAGE_FILE.fullmatch(entry.name)
                if match is None:
                    continue
                with contextlib.suppress(OSError):  # another process deletes files, too
                    stat = entry.stat(follow_symlinks=False)
                    if match[1] and (file := _whole(bytes.fromhex(match[1]), int(match[2], 16), stat)):
                        found.append((stat.st_mtime_ns, file))
                    else:
                        os.unlink(entry.path)
        for used_ns, file in sorted(found):
            self._add(file)
            self._used_ns = used_ns

    def _end_other_keys(self, seal: bytes) -> None:
        """Deletes pages of another key. A file beside the folder has the latest key's hash."""
        mark, own = self.folder.with_suffix(".key"), hashlib.blake2b(seal, digest_size=16).digest()
        with contextlib.suppress(OSError):
            stat = mark.lstat()  # a link may lead anywhere, and a pipe never ends
            if S_ISREG(stat.st_mode) and stat.st_size == len(own) and mark.read_bytes() == own:
                return
        self.clear()
        with contextlib.suppress(OSError):
            mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark.unlink(missing_ok=True)
            with mark.open("xb") as file:
                file.write(own)

    def _read(self, file: _PageFile, head: int, into: NDArray[np.uint8]) -> bool:
        flat, path = _flat(into), self.folder / file.file_name
        buffer = self._buffer(_stride(len(flat)))
        at = (file.heads & ((1 << head) - 1)).bit_count() * len(buffer)
        try:
            with DirectFile(path) as opened:
                opened.read(at, buffer)
        except TpiedgeError:  # without file descriptors, memory or a working disk the page may be read later
            found, spoilt = False, _ends_before(path, at + len(buffer))
        else:
            found = self._seal.open(buffer, _about(file.name, head, into), flat)
            spoilt = not found
        if spoilt:
            self._drop(file.name)
        return found

    def _touch(self, path: Path) -> None:
        """Sets the file's time to a later one than that of all others, whatever the clock says."""
        with self._lock:
            self._used_ns = max(self._used_ns + 1, time.time_ns())
            times = self._used_ns, self._used_ns
        os.utime(path, ns=times)

    def _reserve(self, nbytes: int) -> None:
        """Counts `nbytes` that will be written, and evicts pages for them. Raises OSError if there is no room."""
        disk = shutil.disk_usage(self.folder)
        with self._lock:
            room = min(self.limit_bytes, self._nbytes + disk.free - min(disk.total // 10, GIB)) - nbytes
            evicted = self._evict(room) if room >= 0 else []
            fits = self._nbytes <= room
            if fits:
                self._nbytes += nbytes
        self._delete(evicted)
        if not fits:
            raise OSError(errno.ENOSPC, "no room for another page", str(self.folder))

    def _evict(self, most: int) -> list[_PageFile]:
        """Takes pages out of the index until `most` bytes are left. Returns the files to delete."""
        evicted = list[_PageFile]()
        while self._nbytes > most and self._pages:
            evicted += self._take(next(iter(self._pages)))
            self.evicted += most >= 0  # to clear is not to evict
        return evicted

    def _drop(self, name: bytes) -> None:
        with self._lock:
            files = self._take(name)
        self._delete(files)

    def _take(self, name: bytes) -> tuple[_PageFile, ...]:
        files = self._pages.pop(name, ())
        self._nbytes -= sum(file.nbytes for file in files)
        return files

    def _delete(self, files: Iterable[_PageFile]) -> None:
        for file in files:
            with contextlib.suppress(OSError):
                (self.folder / file.file_name).unlink()

    def _add(self, file: _PageFile) -> None:
        """Adds a file, in place of an earlier one with the same heads, as the most recently used."""
        held = self._pages.get(file.name, ())
        files = *(one for one in held if one.heads != file.heads), file
        self._nbytes += sum(one.nbytes for one in files) - sum(one.nbytes for one in held)
        self._pages[file.name] = files
        self._pages.move_to_end(file.name)

    def _buffer(self, nbytes: int) -> memoryview:
        """Returns this thread's memory for a section, aligned for O_DIRECT."""
        held: mmap.mmap | None = getattr(self._local, "buffer", None)
        if held is None or len(held) < nbytes:
            self._local.buffer = held = mmap.mmap(-1, max(nbytes, ALIGN))
        return memoryview(held)[:nbytes]


def _whole(name: bytes, heads: int, stat: os.stat_result) -> _PageFile | None:
    """Returns the page file, or None if its size cannot be right."""
    blocks, rest = divmod(stat.st_size, ALIGN * max(1, heads.bit_count()))
    right = S_ISREG(stat.st_mode) and rest == 0 and bool(blocks) == bool(heads)
    return _PageFile(name, heads, max(ALIGN, stat.st_size)) if right else None


def _ends_before(path: Path, end: int) -> bool:
    try:
        return path.stat().st_size < end
    except OSError as error:
        return error.errno == errno.ENOENT


def _flat(section: NDArray[np.uint8]) -> memoryview:
    return section.data.cast("B")  # copies nothing: it raises TypeError for other strides


def _stride(nbytes: int) -> int:
    return whole_pages(nbytes + SEAL_BYTES)


def _about(name: bytes, head: int, section: NDArray[np.uint8]) -> bytes:
    return _ABOUT.pack(name, head, *section.shape)
