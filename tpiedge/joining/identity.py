"""A machine's identity: a CURVE key pair in a file of its owner, and the name that follows from it."""

import hashlib
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.host.private_file import create_private, read_private
from tpiedge.transport.keys import CurveKeys, is_key, public_of

_FILE = "key.json"


def load_or_create_keys(folder: Path) -> CurveKeys:
    """The key pair of the machine whose state is in `folder`; made on first use.

    Raises UserError where the file is readable by others or damaged: a new key would be a new machine, so none
    is made in its place.
    """
    path = folder / _FILE
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
    """16 hex digits that stand for a key wherever people or names need it."""
    return hashlib.sha256(public_key.encode("ascii")).hexdigest()[:16]


def cluster_name(master_key: str) -> str:
    """8 hex digits that stand for the master of that key where people need it."""
    return fingerprint(master_key)[:8]


def peer_name(public_key: str) -> str:
    """The name of a worker's agent."""
    return f"w-{fingerprint(public_key)}"
