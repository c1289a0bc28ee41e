"""Files in which the nodes of one machine leave keys and values for the nodes of the next epoch.

A file is a line of JSON and then, head by head, page by page, layer by layer, the parts as they lie in the cache,
encrypted with a key that only this machine's processes have, in memory. It holds no token. Who opens it deletes it.
"""

import hashlib
import json
import os
import secrets
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

__all__ = ["FoundFile", "LeftFile", "Locker"]

_MOST_LINE: Final = 4 * MIB
_NONCE_BYTES: Final = 16


@dataclass(frozen=True)
class Locker:
    """Where this machine's nodes leave files for each other, and the key to them."""

    folder: Path
    key: bytes = field(repr=False)

    def path(self, epoch: int) -> Path:
        return self.folder / str(epoch)


class _Cipher:
    """Each part is added, bit by bit, to a keystream of its own: SHAKE-128 of key, nonce and the part's number, which
    no other part has, as every file has another nonce."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        self._begun = hashlib.shake_128(key + nonce)

    def apply(self, parts: NDArray[np.uint8], first: int) -> NDArray[np.uint8]:
        """[parts, bytes], the first of which has the number `first`: encrypted, or decrypted."""
        streams = [self._stream(first + row, parts.shape[1]) for row in range(len(parts))]
        return parts ^ np.stack(streams)

    def _stream(self, number: int, nbytes: int) -> NDArray[np.uint8]:
        hashed = self._begun.copy()
        hashed.update(number.to_bytes(8, "little"))
        return np.frombuffer(hashed.digest(nbytes), np.uint8)


class LeftFile:
    """The file that is written. The first error ends writing, and is kept."""

    def __init__(self, stack: ExitStack) -> None:
        self.error = ""
        self._stack = stack
        self._file: FileIO | None = None
        self._cipher: _Cipher | None = None
        self._parts = 0

    def open(self, locker: Locker | None, epoch: int) -> None:
        if locker is None:
            self.error = "this machine has no place for it"
            return
        path = locker.path(epoch)
        try:
            locker.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = self._stack.enter_context(os.fdopen(descriptor, "wb", buffering=0))
        except OSError as error:
            self._fail(error)
        self._key = locker.key

    def begin(
        self, facts: Sequence[str], heads: Sequence[int], pages: int, sequences: Sequence[CarriedSequence]
    ) -> None:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        line = {
            "facts": list(facts),
            "nonce": nonce.hex(),
            "heads": list(heads),
            "pages": pages,
            "sequences": list(map(asdict, sequences)),
        }
        self._write(json.dumps(line).encode() + b"\n")
        if self._file is not None:
            self._cipher = _Cipher(self._key, nonce)

    def add(self, parts: NDArray[np.uint8]) -> None:
        """[layers, bytes of a part]: the next ones."""
        if self._cipher is not None and not self.error:
            self._write(self._cipher.apply(parts, self._parts).data)
            self._parts += len(parts)

    def _write(self, data: bytes | memoryview) -> None:
        if self._file is None:
            return
        left = memoryview(data).cast("B")
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.error = f"it cannot be written: {error.strerror}"


class FoundFile:
    """The file that was left here, if one was, and what is wrong with it. It is deleted at once."""

    def __init__(
        self, locker: Locker | None, carried: Carried, facts: Sequence[str], layers: int, stack: ExitStack
    ) -> None:
        self.error = ""
        self.sequences: tuple[CarriedSequence, ...] = ()
        self._heads: dict[int, int] = {}
        self._pages = carried.pages
        self._layers = layers
        self._file: BinaryIO | None = None
        if locker is None:
            return
        path = locker.path(carried.epoch)
        try:
            self._file = stack.enter_context(path.open("rb"))
            path.unlink()
            self._read_line(self._file.readline(_MOST_LINE), facts, locker.key)
        except FileNotFoundError:
            return  # all heads may come from rank 0
        except (OSError, ValueError, KeyError, TypeError) as error:
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
        into[:] = self._cipher.apply(np.frombuffer(data, np.uint8).reshape(into.shape), first)
        return ""

    def _read_line(self, line: bytes, facts: Sequence[str], key: bytes) -> None:
        said = json.loads(line)
        if said["facts"] != list(facts) or said["pages"] != self._pages:
            raise ValueError
        self._start = len(line)
        self._cipher = _Cipher(key, bytes.fromhex(said["nonce"]))
        self._heads = {head: number for number, head in enumerate(said["heads"])}
        self.sequences = tuple(
            CarriedSequence(**{**one, "pages": tuple(one["pages"])}) for one in said["sequences"]
        )
