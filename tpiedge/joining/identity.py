"""A machine's identity: a CURVE key pair, and names made from the public key."""

import hashlib
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.host.private_file import create_private, read_private
from tpiedge.transport.keys import CurveKeys, is_key, public_of


def load_or_create_keys(folder: Path) -> CurveKeys:
    """Returns the machine's key pair; makes it on first use. Raises UserError."""
    path = folder / "key.json"
    found = read_private(path)
    if found is None:
        keys = CurveKeys.generate()
        if create_private(path, {"public": keys.public, "secret": keys.secret}):
            return keys
        found = read_private(path) or {}
    match found:
        case {"public": str(public), "secret": str(secret)} if is_key(public) and is_key(secret):
            if public_of(secret) == public:
                return CurveKeys(public, secret)
    raise UserError(
        f"{path} is damaged (not a key pair): restore it from a backup; or delete it, and this machine is a new one "
        "that has to join again"
    )


def fingerprint(public_key: str) -> str:
    """Returns the 16 hex digits that identify a key."""
    return hashlib.sha256(public_key.encode("ascii")).hexdigest()[:16]


def cluster_name(master_key: str) -> str:
    """Returns the 8 hex digits that identify a master."""
    return fingerprint(master_key)[:8]


def peer_name(public_key: str) -> str:
    return f"w-{fingerprint(public_key)}"
