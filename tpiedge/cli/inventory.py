"""What of models lies on this computer: pulled checkpoints, and packs in the cache."""

import re
from dataclasses import dataclass
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.local.paths import packs_folder
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.hub.cache import folder_label, parse_hub_name
from tpiedge.model.source import resolve_model
from tpiedge.pack.layout import Precision
from tpiedge.pack.manifest import MANIFEST_NAME
from tpiedge.pack.reader import Pack

__all__ = ["StoredPack", "packs_of", "stored_packs"]

_PRECISION = "|".join(precision.value for precision in Precision)
# As `cached_pack` names them: Storage.label and the checkpoint's fingerprint.
_STORAGE = rf"(?:{_PRECISION})(?:-embedding-(?:{_PRECISION}))?(?:-head-(?:{_PRECISION}))?(?:-plain)?"
_OF_MODEL = re.compile(rf"(.+?)-{_STORAGE}-[0-9a-f]{{16}}")


@dataclass(frozen=True)
class StoredPack:
    """A pack of the cache. `precision` and `nbytes` are None where it cannot be read."""

    path: Path
    model: str
    precision: str | None
    nbytes: int | None


def stored_packs(cache: Path | None) -> list[StoredPack]:
    """Every complete pack of the cache, by name."""
    return [_describe(path.parent) for path in sorted(packs_folder(cache).glob(f"*/{MANIFEST_NAME}"))]


def packs_of(name: str, cache: Path | None) -> list[Path]:
    """The packs in the cache that were made from the model `name`, or the one that is called so."""
    folder = packs_folder(cache)
    if "/" not in name and (folder / name / MANIFEST_NAME).is_file():
        return [folder / name]
    hub_name = parse_hub_name(name)
    if hub_name is not None:
        return [pack.path for pack in stored_packs(cache) if pack.model == hub_name.repo]
    checkpoint = Checkpoint.open(resolve_model(name, cache))
    label, ending = folder_label(checkpoint.folder), checkpoint.fingerprint[:16]
    of_checkpoint = re.compile(f"{re.escape(label)}-{_STORAGE}-{ending}")
    found = (path.parent for path in folder.glob(f"*/{MANIFEST_NAME}"))
    return sorted(path for path in found if of_checkpoint.fullmatch(path.name))


def _describe(path: Path) -> StoredPack:
    match = _OF_MODEL.fullmatch(path.name)
    model = match[1].replace("--", "/", 1) if match else path.name
    try:
        pack = Pack.open(path)
    except UserError:
        return StoredPack(path, model, None, None)
    return StoredPack(path, model, pack.precision.value, pack.nbytes)
