"""The shard store: partly filled packs on a worker's disk.

    blobs/ID            a sparse file of the blob's full size; packs that have the blob share it
    blobs/ID.hashes     its table of hashes, which the id vouches for
    blobs/ID.present    which of its ranges are there (presence.py)
    packs/PACK/         manifest.json and a link to blobs/: what `Pack.open` opens
    packs/PACK/in-use   locked together by everyone who uses the pack: locked alone by who removes it
    packs/PACK/fetching locked alone by who fetches
    lock                locked alone while packs come and go

PACK is the sha256 of the manifest. Every lock dies with its process.
"""

import contextlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from tpiedge.errors import ProtocolError, TpiedgeError, UserError
from tpiedge.pack.hashes import is_blob_id
from tpiedge.pack.held import HeldUnits
from tpiedge.pack.identity import MAX_MANIFEST_BYTES, manifest_bytes, pack_id
from tpiedge.pack.layout import BlobLayout
from tpiedge.pack.manifest import BLOB_FOLDER, MANIFEST_NAME, load_manifest
from tpiedge.pack.reader import Pack
from tpiedge.pack.store.copy import ShardCopy
from tpiedge.pack.store.holding import held_units
from tpiedge.pack.store.locks import FileLock
from tpiedge.pack.store.presence import Presence
from tpiedge.pack.store.space import (
    PackUsage,
    StoreUsage,
    allocated_bytes,
    check_room,
    explain_store_errors,
    read_limit,
)
from tpiedge.pack.writing.target import sync_folder

_PACKS = "packs"
_LOCK = "lock"
_IN_USE = "in-use"
_INCOMING = re.compile(r"\.incoming-[0-9a-f]{8}")
_LOCK_WAIT_S = 30.0
_log = logging.getLogger(__name__)
_SLACK = 20  # a twentieth: file system blocks and tables
_FREE_PART = 10  # a tenth of the disk is left to others by what is not needed yet


class ShardStore:
    """The store in `folder`, of at most `limit_bytes` (default: the limit kept in the folder, else none).

    Every method raises DiskFull or UserError where the folder cannot be used.
    """

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        self.folder = folder.absolute()
        self.limit_bytes = read_limit(self.folder) if limit_bytes is None else limit_bytes
        with explain_store_errors(self.folder, 4096):
            (self.folder / _PACKS).mkdir(parents=True, exist_ok=True)
            (self.folder / BLOB_FOLDER).mkdir(exist_ok=True)

    @property
    def pack_ids(self) -> tuple[str, ...]:
        """Packs whose manifest is here."""
        return tuple(sorted(e.name for e in (self.folder / _PACKS).iterdir() if is_blob_id(e.name)))

    def held_units(self, most: int) -> Mapping[str, HeldUnits]:
        """The units that are here of every layer, for each of the `most` packs that were used last; none where they
        cannot be read. Takes no lock, and counts as no use."""
        found: dict[str, HeldUnits] = {}
        with contextlib.suppress(OSError):
            for identity in sorted(self.pack_ids, key=self._used_at, reverse=True)[:most]:
                folder = self._folder_of(identity)
                with contextlib.suppress(TpiedgeError):
                    if self.has(identity):
                        found[identity] = held_units(Pack(folder, load_manifest(folder)))
        return found

    def has(self, identity: str) -> bool:
        """Whether the manifest of the pack `identity` is here, byte for byte."""
        try:
            return pack_id(manifest_bytes(self._folder_of(identity))) == identity
        except UserError:
            return False

    def adopt_manifest(self, manifest: bytes, identity: str) -> None:
        """Make an empty copy of the pack `identity` from its manifest, which may be forged. ProtocolError if it is.

        It takes the place of a copy whose manifest is no longer that of its name, and keeps the weights of that one.
        """
        if len(manifest) > MAX_MANIFEST_BYTES or pack_id(manifest) != identity:
            raise ProtocolError(f"the manifest is not the one of the pack {identity[:12]}")
        with self._locked(), explain_store_errors(self.folder, len(manifest)):
            self._remove_leftovers()
            target = self._folder_of(identity)
            if self.has(identity):
                return
            incoming = self.folder / _PACKS / f".incoming-{secrets.token_hex(4)}"
            try:
                self._adopt(manifest, incoming)
                if target.exists() and not self._discard(identity):
                    raise UserError(
                        f"the damaged pack {identity[:12]} is in use: end the worker that uses it first"
                    )
                incoming.rename(target)
            except BaseException:
                shutil.rmtree(incoming, ignore_errors=True)
                self._remove_orphans()
                raise
            sync_folder(target.parent)

    def open(self, identity: str) -> ShardCopy:
        """Opens a pack that was adopted; it is not evicted until `close`. Files that vanished are made anew, empty."""
        with self._locked(), explain_store_errors(self.folder, 4096):
            folder = self._folder_of(identity)
            if not self.has(identity):
                raise UserError(
                    f"the shard store {self.folder} has no whole pack {identity[:12]}: fetch it again"
                )
            lock = FileLock(folder / _IN_USE)
            if not lock.try_shared():
                raise UserError(f"another process is removing the pack {identity[:12]}: try again")
            try:
                os.utime(folder / _IN_USE)
                return ShardCopy(self._open(folder), identity, lock)
            except BaseException:
                lock.close()
                raise

    def make_room(self, needed: int) -> None:
        """Evicts packs that no process uses, the one used longest ago first, until `needed` bytes and 5 % more fit.

        Raises DiskFull; UserError where evicting would free nothing, since a pack's manifest cannot be read.
        """
        wanted = needed + needed // _SLACK
        with self._locked(), explain_store_errors(self.folder, wanted):
            for victim in sorted(self._packs(), key=lambda pack: pack.used_at):
                if victim.in_use or self._fits(wanted):
                    continue
                self._kept_blobs()  # raises where the victim's blobs would stay
                self._remove(victim.id)
            check_room(self.folder, wanted, self._held_bytes(), self.limit_bytes)

    def check_spare_room(self, needed: int, reserve: int) -> None:
        """Raises DiskFull unless `needed` bytes fit as it is, and `reserve` more; where the store has no limit, a tenth
        of the disk besides."""
        wanted = needed + needed // _SLACK + reserve
        with self._locked(), explain_store_errors(self.folder, wanted):
            if self.limit_bytes is None:
                wanted += shutil.disk_usage(self.folder).total // _FREE_PART
            check_room(self.folder, wanted, self._held_bytes(), self.limit_bytes)

    def remove(self, prefix: str) -> str:
        """Remove the one pack whose id begins with `prefix`, and the blobs that no other pack has; returns its id."""
        with self._locked(), explain_store_errors(self.folder, 4096):
            found = [identity for identity in self.pack_ids if identity.startswith(prefix)]
            if len(found) != 1 or not prefix:
                known = ", ".join(identity[:12] for identity in self.pack_ids) or "none"
                raise UserError(f"{len(found)} packs are called {prefix[:64]!r}; there are: {known}")
            if not self._remove(found[0]):
                raise UserError(f"the pack {found[0][:12]} is in use: end the worker that uses it first")
            return found[0]

    def usage(self) -> StoreUsage:
        """What is held."""
        with self._locked(), explain_store_errors(self.folder, 4096):
            return StoreUsage(tuple(self._packs()), self._held_bytes(), self.limit_bytes)

    def _folder_of(self, identity: str) -> Path:
        if not is_blob_id(identity):
            raise ProtocolError(f"not the id of a pack: {identity[:80]!r}")
        return self.folder / _PACKS / identity

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with FileLock(self.folder / _LOCK) as lock, explain_store_errors(self.folder, 4096):
            lock.wait_alone(_LOCK_WAIT_S, f"the shard store {self.folder} is being changed")
            yield

    def _adopt(self, manifest: bytes, incoming: Path) -> None:
        incoming.mkdir()
        _write_synced(incoming / MANIFEST_NAME, manifest)
        (incoming / BLOB_FOLDER).symlink_to(Path("..", "..", BLOB_FOLDER))
        self._open(incoming)
        sync_folder(incoming)

    def _open(self, folder: Path) -> Pack:
        """The pack in `folder`, after making the files that it lacks."""
        pack = Pack(folder, load_manifest(folder))
        for key in pack.unique_keys:
            _ensure_blob(pack.blob_path(key), pack.layout(key))
        return Pack.open(folder)

    def _packs(self) -> list[PackUsage]:
        return [used for identity in self.pack_ids if (used := self._usage_of(identity)) is not None]

    def _usage_of(self, identity: str) -> PackUsage | None:
        folder = self._folder_of(identity)
        with contextlib.suppress(TpiedgeError, OSError):
            pack = Pack(folder, load_manifest(folder))
            layers = [key for key in pack.unique_keys if isinstance(key, int)]
            in_use = folder / _IN_USE
            return PackUsage(
                identity,
                pack.num_layers,
                pack.precision.value,
                sum(allocated_bytes(pack.blob_path(layer)) for layer in layers),
                sum(pack.layout(layer).nbytes for layer in layers),
                self._used_at(identity),
                _is_locked(in_use),
            )
        return None

    def _used_at(self, identity: str) -> float:
        folder = self._folder_of(identity)
        in_use = folder / _IN_USE
        return (in_use if in_use.exists() else folder).stat().st_mtime

    def _held_bytes(self) -> int:
        return sum(allocated_bytes(entry) for entry in (self.folder / BLOB_FOLDER).iterdir())

    def _fits(self, wanted: int) -> bool:
        try:
            check_room(self.folder, wanted, self._held_bytes(), self.limit_bytes)
        except TpiedgeError:
            return False
        return True

    def _remove(self, identity: str) -> bool:
        """False where a process uses the pack."""
        if not self._discard(identity):
            return False
        self._remove_orphans()
        return True

    def _discard(self, identity: str) -> bool:
        """Removes the pack without its blobs; False where a process uses it. None can begin to: that takes the store's
        lock."""
        folder = self._folder_of(identity)
        with FileLock(folder / _IN_USE) as lock:
            if not lock.try_alone():
                return False
            # The manifest goes first: a crash in between leaves blobs that the next removal finds.
            (folder / MANIFEST_NAME).unlink(missing_ok=True)
            shutil.rmtree(folder)
        return True

    def _remove_orphans(self) -> None:
        """Removes the blobs that no pack has; none where a manifest cannot be read, since they may be that pack's."""
        try:
            kept = self._kept_blobs()
        except UserError as error:
            _log.warning("%s", error)
            return
        for entry in (self.folder / BLOB_FOLDER).iterdir():
            if entry.name.lstrip(".")[:64] not in kept:
                entry.unlink(missing_ok=True)

    def _kept_blobs(self) -> set[str]:
        """The blobs that packs have. Raises UserError unless the manifest of every pack was read."""
        kept: set[str] = set()
        for identity in self.pack_ids:
            folder = self._folder_of(identity)
            if _is_remnant(folder):
                continue
            if not self.has(identity):
                name = identity[:12]
                raise UserError(
                    f"the manifest of the pack {name} is damaged or cannot be read, so nobody knows which weights it "
                    f"uses, and none are removed: try again, or remove the pack with `tpiedge shards rm {name}`"
                )
            pack = Pack(folder, load_manifest(folder))
            kept.update(pack.blob_id(key) for key in pack.unique_keys)
        return kept

    def _remove_leftovers(self) -> None:
        """What a process left that died while it adopted a manifest."""
        for entry in (self.folder / _PACKS).iterdir():
            if _INCOMING.fullmatch(entry.name):
                shutil.rmtree(entry, ignore_errors=True)


def _ensure_blob(path: Path, layout: BlobLayout) -> None:
    """A sparse file of the right size at `path`; one that is not is replaced, and its ranges forgotten."""
    if path.is_file() and path.stat().st_size == layout.nbytes:
        return
    Presence(path.parent / f"{path.name}.present", layout.range_count).remove()
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, layout.nbytes)
    finally:
        os.close(fd)


def _is_remnant(folder: Path) -> bool:
    """Whether a removal that was killed left the folder: it has no manifest, and nobody uses it."""
    return not (folder / MANIFEST_NAME).exists() and not _is_locked(folder / _IN_USE)


def _is_locked(path: Path) -> bool:
    return path.exists() and FileLock(path).is_held()


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
