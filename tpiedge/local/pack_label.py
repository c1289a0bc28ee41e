"""label.json: what a pack of the cache is called on this computer, and what it was made from.

It lies beside the manifest, is no part of the pack's identity, and does not travel. Its time of change is when the pack
was last used. A pack without one, as earlier versions made them, is called like its folder.
"""

import contextlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.local.text_folder import write_files
from tpiedge.model.aliases import aliases
from tpiedge.model.folder import read_json
from tpiedge.model.source import DEMO
from tpiedge.pack.manifest import MANIFEST_NAME
from tpiedge.sanitise import quote

_LABEL = "label.json"
_MAX_BYTES = 65_536
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_LONGEST_STEM = 80
# As files of GGUF are called: "model.Q4_K_M", "model-f16".
_STORAGE_ENDING = re.compile(r"[.-](?:i?q\d\w*|bf16|fp?16|fp?32)$", re.IGNORECASE)


@dataclass(frozen=True)
class PackLabel:
    """`source`: "org/name", or the path of the checkpoint or of the GGUF file; empty where it is not known."""

    name: str
    source: str = ""


def short_name(stem: str, precision: str) -> str:
    """A name that people can type: ("SmolLM2-135M.Q4_1", "q8") -> "SmolLM2-135M-q8"."""
    cleaned = "".join(mark if mark.isascii() and (mark.isalnum() or mark in "-_.") else "-" for mark in stem)
    bare = _STORAGE_ENDING.sub("", cleaned.strip(".-_"))[:_LONGEST_STEM].strip(".-_")
    return f"{bare or 'model'}-{precision}"


def check_name(name: str) -> str:
    """Returns what --name says. Raises UserError for what could not be told from another model's name."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"--name {quote(name)} is not a name: 1 to 96 letters, digits, '.', '_' and '-', a letter or digit first"
        )
    if name.lower() in (DEMO, *map(str.lower, aliases())):
        raise UserError(f"--name {name} already means another model (tpiedge ls --all): choose another name")
    return name


def has_label(pack: Path) -> bool:
    """Whether the pack has been named."""
    return (pack / _LABEL).is_file()


def load_label(pack: Path) -> PackLabel:
    """The label of the pack in folder `pack`; its folder's name where it has none, or one that is damaged."""
    folder = os.path.basename(os.path.abspath(pack))
    try:
        values = read_json(pack, _LABEL, _MAX_BYTES)
    except (OSError, UserError):
        return PackLabel(folder)
    match values:
        case {"name": str(name), "source": str(source)} if _NAME.fullmatch(name):
            return PackLabel(name, source)
    return PackLabel(folder)


def save_label(pack: Path, label: PackLabel) -> None:
    """Replace the pack's label."""
    write_files(pack, {_LABEL: json.dumps(asdict(label), indent=1).encode()})


def mark_used(pack: Path) -> None:
    """Note that the pack was used now, where that can be noted: the pack may be another user's."""
    with contextlib.suppress(OSError):
        os.utime(pack / _LABEL)


def last_use_s(pack: Path) -> float:
    """When the pack was last used, or made, in seconds since 1970."""
    for name in (_LABEL, MANIFEST_NAME):
        with contextlib.suppress(OSError):
            return (pack / name).stat().st_mtime
    return 0.0
