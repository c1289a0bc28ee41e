"""Encrypts and authenticates bytes on disk, with AES-256-GCM.

Sealed bytes are a random salt, the ciphertext, its tag, and zeros up to the end. Each salt gives a key of its own,
which encrypts once. So no nonce repeats under a key, on any node, after any restart, with any restored disk.
"""

import hashlib
import secrets
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tpiedge.errors import InternalError

_SALT_BYTES: Final = 32
SEAL_BYTES: Final = _SALT_BYTES + 16
"""Sealed bytes are longer by at least this number."""
_NONCE: Final = bytes(12)
#: Another number makes files of earlier versions unreadable.
_LABEL: Final = b"tpiedge page 1"


class Seal:
    """Any thread may call the methods. `key`: 32 to 64 secret bytes. `about` is authenticated, but not stored."""

    def __init__(self, key: bytes) -> None:
        if len(key) < 32:
            raise InternalError(f"a key of {len(key)} bytes seals nothing")
        self._key = key

    def close(self, data: memoryview, about: bytes, into: memoryview) -> None:
        """Fills `into` with sealed `data`."""
        salt, end = secrets.token_bytes(_SALT_BYTES), len(data) + SEAL_BYTES
        into[:_SALT_BYTES] = salt
        self._cipher(salt).encrypt_into(_NONCE, data, about, into[_SALT_BYTES:end])
        into[end:] = bytes(len(into) - end)

    def open(self, sealed: memoryview, about: bytes, into: memoryview) -> bool:
        """Fills `into` with the data. Returns False, and leaves `into` in any state, if the key, `about` or any bit is
        not what it was."""
        end = len(into) + SEAL_BYTES
        cipher = self._cipher(bytes(sealed[:_SALT_BYTES]))
        try:
            cipher.decrypt_into(_NONCE, sealed[_SALT_BYTES:end], about, into)
        except InvalidTag:
            return False
        return bytes(sealed[end:]) == bytes(len(sealed) - end)

    def _cipher(self, salt: bytes) -> AESGCM:
        return AESGCM(hashlib.blake2b(salt, digest_size=32, key=self._key, person=_LABEL).digest())
