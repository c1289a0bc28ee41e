"""Files in which the nodes of one machine leave keys and values for the nodes of the next epoch.

A file is a nonce, the length of a header, the header (JSON: whose the parts are; no token), and then, head by head,
page by page, layer by layer, the parts as they lie in the cache. Header and parts are encrypted with a key that only
this machine's processes have, in memory. Who opens a file deletes it; one that cannot be written to its end is deleted,
too.
"""

import contextlib
import hashlib
import json
import os
import secrets
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from tpiedge.engine.sequence import CarriedSequence
from tpiedge.units import MIB
from tpiedge.wire.control import Carried

_MOST_HEADER: Final = 4 * MIB
_NONCE_BYTES: Final = 16
_LENGTH: Final = struct.Struct("<I")
_HEADER: Final = b"header"


@dataclass(frozen=True)
class Locker:
    """Where this machine's nodes leave files for each other, and the key to them."""

    folder: Path
    key: bytes = field(repr=False)

    def path(self, epoch: int) -> Path:
        return self.folder / str(epoch)

    def clear(self) -> None:
        """Deletes all that is left here. Raises OSError."""
        for path in self.folder.glob("*"):
            path.unlink(missing_ok=True)


class _Cipher:
    """Everything is added, bit by bit, to a keystream of its own: SHAKE-128 of key, nonce and a label, which no other
    part of the file has, as every file has another nonce."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        self._begun = hashlib.shake_128(key + nonce)

    def parts(self, parts: NDArray[np.uint8], first: int) -> NDArray[np.uint8]:
        """[parts, bytes], the first of which has the number `first`: encrypted, or decrypted."""
        labels = range(first, first + len(parts))
        return parts ^ np.stack([self._stream(_LENGTH.pack(label), parts.shape[1]) for label in labels])

    def header(self, data: bytes) -> bytes:
        """Encrypted, or decrypted."""
        return (np.frombuffer(data, np.uint8) ^ self._stream(_HEADER, len(data))).tobytes()

    def _stream(self, label: bytes, nbytes: int) -> NDArray[np.uint8]:
        hashed = self._begun.copy()
        hashed.update(label)
        return np.frombuffer(hashed.digest(nbytes), np.uint8)


class LeftFile:
    """The file that is written, with the parts of these `heads` in so many `pages`. It takes the place of any earlier
    one of its epoch. The first error ends writing, deletes what there is, and is kept."""

    def __init__(
        self,
        locker: Locker,
        epoch: int,
        facts: Sequence[str],
        heads: Sequence[int],
        pages: int,
        sequences: Sequence[CarriedSequence],
        stack: ExitStack,
    ) -> None:
        self.error = ""
        self._path = locker.path(epoch)
        self._file: FileIO | None = None
        self._parts = 0
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._cipher = _Cipher(locker.key, nonce)
        said = {"facts": list(facts), "heads": list(heads), "pages": pages}
        header = json.dumps({**said, "sequences": list(map(asdict, sequences))}).encode()
        try:
            locker.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = stack.enter_context(os.fdopen(descriptor, "wb", buffering=0))
        except OSError as error:
            self._fail(error)
        self._write(nonce + _LENGTH.pack(len(header)) + self._cipher.header(header))

    def add(self, parts: NDArray[np.uint8]) -> None:
        """The next ones, [layers, bytes of a part]."""
        if not self.error:
            self._write(self._cipher.parts(parts, self._parts).data)
            self._parts += len(parts)

    def discard(self) -> None:
        """Nobody will take it. What cannot be deleted the next node here finds and tells: it clears the locker."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _write(self, data: bytes | memoryview) -> None:
        if self._file is None or self.error:
            return
        left = memoryview(data).cast("B")
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.error = f"it cannot be written: {error.strerror}"
        if self._file is not None:
            self.discard()  # a full disk has room again


class FoundFile:
    """The file that was left here, and what is wrong with it. It is deleted at once."""

    def __init__(
        self, locker: Locker, carried: Carried, facts: Sequence[str], layers: int, stack: ExitStack
    ) -> None:
        self.error = ""
        self.sequences: tuple[CarriedSequence, ...] = ()
        self._heads: dict[int, int] = {}
        self._pages = carried.pages
        self._layers = layers
        self._file: BinaryIO | None = None
        self._cipher = _Cipher(locker.key, b"")
        self._start = 0
        path = locker.path(carried.epoch)
        try:
            self._file = stack.enter_context(path.open("rb"))
            path.unlink()
            self._read_header(self._file, locker.key, facts)
        except (OSError, ValueError, KeyError, TypeError, struct.error, RecursionError) as error:
            self.error = f"what was left cannot be read: {type(error).__name__}"

    def read(self, into: NDArray[np.uint8], head: int, page: int, first_layer: int) -> str:
        """Fills `into` ([layers, bytes of a part]) from `first_layer` on. Returns why it cannot, or ""."""
        if self._file is None or head not in self._heads:
            return f"head {head} was not left here"
        first = (self._heads[head] * self._pages + page) * self._layers + first_layer
        try:
            self._file.seek(self._start + first * into.shape[1])
            data = self._file.read(into.nbytes)
        except OSError as error:
            return f"what was left cannot be read: {error.strerror}"
        if len(data) < into.nbytes:
            return "what was left is too short"
        into[:] = self._cipher.parts(np.frombuffer(data, np.uint8).reshape(into.shape), first)
        return ""

    def _read_header(self, file: BinaryIO, key: bytes, facts: Sequence[str]) -> None:
        self._cipher = _Cipher(key, file.read(_NONCE_BYTES))
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if length > _MOST_HEADER:
            raise ValueError
        said = json.loads(self._cipher.header(file.read(length)))
        if said["facts"] != list(facts) or said["pages"] != self._pages:
            raise ValueError
        self._start = file.tell()
        self._heads = {head: number for number, head in enumerate(said["heads"])}
        self.sequences = tuple(
            CarriedSequence(**{**one, "pages": tuple(one["pages"])}) for one in said["sequences"]
        )
