"""The shard store: partly filled packs on a worker's disk, within a limit.

    blobs/ID            a sparse file of the blob's full size, shared by packs
    blobs/ID.hashes     its table of hashes; ID is the sha256 of layout and table
    blobs/ID.present    one bit per range, 1 if its bytes are there (shard_copy.py)
    packs/PACK/         manifest.json and a link to blobs/, for `Pack.open`
    packs/PACK/in-use   lock: shared by the pack's users, exclusive for its removal
    packs/PACK/fetching lock of the process that fetches
    lock                lock of the process that adds or removes packs

PACK is the sha256 of the manifest.
"""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import DiskFull, ProtocolError, TpiedgeError, UserError
from tpiedge.pack.files import FileLock, check_free_space, partial_folder, replacing, write_synced
from tpiedge.pack.manifest import BLOB_FOLDER, MANIFEST_NAME, MAX_MANIFEST_BYTES, manifest_bytes, pack_id
from tpiedge.pack.reader import Pack
from tpiedge.pack.shard_copy import ROOM_REMEDY, Presence, ShardCopy, explain_store_errors
from tpiedge.units import format_bytes

_ID = re.compile(r"[0-9a-f]{64}")
_IN_USE = "in-use"


@dataclass(frozen=True)
class PackUsage:
    """A pack in the store. `full_bytes` counts all layers. `used_at` is in seconds since 1970. Of a pack that this
    tpiedge cannot read, `layers` is 0 and `precision` is "?"."""

    id: str
    layers: int
    precision: str
    held_bytes: int
    full_bytes: int
    used_at: float
    in_use: bool


@dataclass(frozen=True)
class StoreUsage:
    """The store's packs and size. `held_bytes` counts shared blobs once, and no links to other programs' files."""

    packs: tuple[PackUsage, ...]
    held_bytes: int
    limit_bytes: int | None


def allocated_bytes(path: Path) -> int:
    """Returns the file's bytes on disk; 0 for a link to another program's file."""
    try:
        state = path.lstat()
    except OSError:
        return 0
    return 0 if path.is_symlink() or state.st_nlink > 1 else state.st_blocks * 512


def write_limit(folder: Path, limit: int | None) -> None:
    """Writes the store's limit into `folder`; None removes it."""
    with explain_store_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / "limit") as new:
            new.write_text("" if limit is None else f"{limit}\n")


class ShardStore:
    """The store in `folder`. `limit_bytes` is by default the limit written in `folder`. Methods raise DiskFull or
    UserError."""

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        self.folder = folder.absolute()
        self.limit_bytes = self._read_limit() if limit_bytes is None else limit_bytes
        self._packs, self._blobs = self.folder / "packs", self.folder / BLOB_FOLDER
        with explain_store_errors(self.folder):
            self._packs.mkdir(parents=True, exist_ok=True)
            self._blobs.mkdir(exist_ok=True)

    @property
    def pack_ids(self) -> tuple[str, ...]:
        return tuple(sorted(e.name for e in self._packs.iterdir() if _ID.fullmatch(e.name)))

    def has(self, identity: str) -> bool:
        """Whether the store has the pack, with an undamaged manifest."""
        try:
            return pack_id(manifest_bytes(self._folder_of(identity))) == identity
        except UserError:
            return False

    def adopt_manifest(self, manifest: bytes, identity: str) -> None:
        """Adds the manifest's pack. Reuses blobs. Raises ProtocolError unless `identity` is the manifest's."""
        if len(manifest) > MAX_MANIFEST_BYTES or pack_id(manifest) != identity:
            raise ProtocolError(f"the manifest is not the one of the pack {identity[:12]}")
        with self._locked():
            target = self._folder_of(identity)
            if self.has(identity):
                return
            with partial_folder(target) as incoming:
                write_synced(incoming / MANIFEST_NAME, manifest)
                (incoming / BLOB_FOLDER).symlink_to(Path("..", "..", BLOB_FOLDER))
                _open(incoming)
                if target.exists() and not self._discard(identity):
                    raise UserError(
                        f"the damaged pack {identity[:12]} is in use: end the worker that uses it first"
                    )

    def open(self, identity: str) -> ShardCopy:
        """Opens an adopted pack, and keeps it from eviction until `close`."""
        with self._locked():
            folder = self._folder_of(identity)
            if not self.has(identity):
                raise UserError(
                    f"the shard store {self.folder} has no whole pack {identity[:12]}: fetch it again"
                )
            lock = FileLock(folder / _IN_USE)
            if not lock.try_lock(fcntl.LOCK_SH):
                raise UserError(f"another process is removing the pack {identity[:12]}: try again")
            try:
                os.utime(folder / _IN_USE)
                return ShardCopy(_open(folder), identity, lock)
            except BaseException:
                lock.close()
                raise

    def make_room(self, needed: int) -> None:
        """Evicts the least recently used packs until `needed` bytes fit. Raises DiskFull."""
        with self._locked():
            for victim in sorted(self._usages(), key=lambda pack: pack.used_at):
                with contextlib.suppress(DiskFull):
                    return self._check_room(needed)
                if not victim.in_use:
                    self._remove(victim.id)
            self._check_room(needed)

    def check_spare_room(self, needed: int, reserve: int) -> None:
        """Raises DiskFull unless `needed` and `reserve` bytes fit without eviction. If the store has no limit, 10 % of
        the disk must stay free, too."""
        with self._locked():
            if self.limit_bytes is None:
                reserve += shutil.disk_usage(self.folder).total // 10
            self._check_room(needed, reserve)

    def remove(self, prefix: str) -> str:
        """Removes the pack whose id begins with `prefix`. Returns the id."""
        with self._locked():
            found = [identity for identity in self.pack_ids if identity.startswith(prefix)]
            if len(found) != 1 or not prefix:
                known = ", ".join(identity[:12] for identity in self.pack_ids) or "none"
                raise UserError(f"{len(found)} packs are called {prefix[:64]!r}; there are: {known}")
            if not self._remove(found[0]):
                raise UserError(f"the pack {found[0][:12]} is in use: end the worker that uses it first")
            return found[0]

    def usage(self) -> StoreUsage:
        with self._locked():
            return StoreUsage(tuple(self._usages()), self._held_bytes(), self.limit_bytes)

    def _folder_of(self, identity: str) -> Path:
        if not _ID.fullmatch(identity):
            raise ProtocolError(f"not the id of a pack: {identity[:80]!r}")
        return self._packs / identity

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with FileLock(self.folder / "lock") as lock, explain_store_errors(self.folder):
            lock.wait_alone(30.0, f"the shard store {self.folder} is being changed")
            yield

    def _read_limit(self) -> int | None:
        text = ""
        with contextlib.suppress(OSError):
            text = (self.folder / "limit").read_text()[:32].strip()
        return int(text) if text.isascii() and text.isdigit() else None

    def _usages(self) -> list[PackUsage]:
        found = []
        for identity in self.pack_ids:
            folder = self._folder_of(identity)
            in_use = folder / _IN_USE
            with contextlib.suppress(TpiedgeError, OSError):
                held = sum(allocated_bytes(self._blobs / blob) for blob in self._blob_ids(identity))
                facts = 0, "?", held, held
                with contextlib.suppress(UserError):
                    pack = Pack(folder)
                    full = sum(pack.layout(layer).nbytes for layer in pack.unique_layers)
                    facts = pack.num_layers, pack.precision.value, held, full
                used_at = (in_use if in_use.exists() else folder).stat().st_mtime
                is_held = in_use.exists() and FileLock(in_use).is_held()
                found.append(PackUsage(identity, *facts, used_at, is_held))
        return found

    def _blob_ids(self, identity: str) -> set[str]:
        """Returns the pack's blobs, and perhaps other ids. The manifest may have any version."""
        return set(_ID.findall(manifest_bytes(self._folder_of(identity)).decode(errors="replace")))

    def _held_bytes(self) -> int:
        return sum(allocated_bytes(entry) for entry in self._blobs.iterdir())

    def _check_room(self, needed: int, reserve: int = 0) -> None:
        wanted, used, limit = needed + needed // 20 + reserve, self._held_bytes(), self.limit_bytes
        if limit is not None and used + wanted > limit:
            raise DiskFull(
                f"{format_bytes(wanted)} more do not fit into the shard store {self.folder}: {format_bytes(used)} of "
                f"{format_bytes(limit)} are taken; free some with `tpiedge shards rm`, or raise `tpiedge shards limit`"
            )
        check_free_space(self.folder, wanted, f"the shard store {self.folder}", ROOM_REMEDY)

    def _remove(self, identity: str) -> bool:
        if not self._discard(identity):
            return False
        kept = {blob for other in filter(self.has, self.pack_ids) for blob in self._blob_ids(other)}
        for entry in self._blobs.iterdir():
            if entry.name.lstrip(".")[:64] not in kept:
                entry.unlink(missing_ok=True)
        return True

    def _discard(self, identity: str) -> bool:
        """Deletes a pack, or returns False if it is in use. Needs the store's lock."""
        folder = self._folder_of(identity)
        with FileLock(folder / _IN_USE) as lock:
            if not lock.try_alone():
                return False
            # The manifest goes first: after a crash the next removal finds the blobs.
            (folder / MANIFEST_NAME).unlink(missing_ok=True)
            shutil.rmtree(folder)
        return True


def _open(folder: Path) -> Pack:
    """Opens the pack. Missing blobs become empty sparse files."""
    pack = Pack(folder)
    for key in pack.unique_keys:
        path, layout = pack.blob_path(key), pack.layout(key)
        if path.is_file() and path.stat().st_size == layout.nbytes:
            continue
        Presence(path.with_suffix(".present"), layout.range_count).remove()
        path.unlink(missing_ok=True)
        with open(path, "xb") as file:
            file.truncate(layout.nbytes)
    return Pack.open(folder)
