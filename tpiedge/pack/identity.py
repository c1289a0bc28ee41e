"""The name of a pack between computers: the sha256 of its manifest, which names every blob by its content."""

import hashlib
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.pack.files import open_regular
from tpiedge.pack.manifest import MANIFEST_NAME

MAX_MANIFEST_BYTES = 16 << 20


def manifest_bytes(folder: Path) -> bytes:
    """The manifest of the pack in `folder`, unread. Raises UserError."""
    path = folder / MANIFEST_NAME
    try:
        with open(open_regular(path), "rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > MAX_MANIFEST_BYTES:
        raise UserError(f"{path} is larger than any pack's: it is not one; pack again")
    return data


def pack_id(manifest: bytes) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(manifest).hexdigest()
