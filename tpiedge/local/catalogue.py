"""Finds this computer's models by name."""

import contextlib
import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Literal

from tpiedge.errors import UserError
from tpiedge.model.checkpoint import Checkpoint
from tpiedge.model.folder import read_json
from tpiedge.model.gguf.model import GgufModel
from tpiedge.model.presets import aliases, find_alias
from tpiedge.model.source import DEMO, HubCache, HubName, cache_folder, is_gguf, parse_hub_name, resolve_model
from tpiedge.pack.files import replacing
from tpiedge.pack.manifest import MANIFEST_NAME
from tpiedge.pack.reader import Pack
from tpiedge.pack.specs import Precision
from tpiedge.progress import say
from tpiedge.sanitise import quote, sanitised_line

# Names made by Storage.label.
_PRECISION = f"(?:{'|'.join(one.value for one in Precision)})"
_OF_MODEL = re.compile(
    rf"(.+?)-(?:kept-)?{_PRECISION}(?:-(?:embedding|head)-{_PRECISION})*(?:-vectors-f32)?(?:-plain)?-[0-9a-f]{{16}}"
)
_LABEL = "label.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
# Endings of GGUF files: "model.Q4_K_M", "model-f16".
_STORAGE_ENDING = re.compile(r"[.-](?:i?q\d\w*|mxfp4\w*|bf16|fp?16|fp?32)$", re.IGNORECASE)


@dataclass(frozen=True)
class FoundModel:
    kind: Literal["pack", "GGUF file", "checkpoint"]
    path: Path


@dataclass(frozen=True)
class StoredPack:
    """A pack of the cache. `precision` and `nbytes` are None if unreadable. `used_s`, its last use, is in Unix seconds.
    `rounded` says which of its source's matrices were rounded."""

    path: Path
    name: str
    model: str
    source: str
    precision: str | None
    nbytes: int | None
    used_s: float
    rounded: str


@dataclass(frozen=True)
class PackLabel:
    """A pack's name, origin, and what was rounded, in label.json. The file's mtime is the last use."""

    name: str
    source: str = ""
    rounded: str = ""


def packs_folder(cache: Path | None) -> Path:
    return cache_folder(cache) / "packs"


def shards_folder(cache: Path | None) -> Path:
    return cache_folder(cache) / "shards"


def find_model(name: str, cache: Path | None) -> FoundModel:
    """Finds a model, in this order:

    - "demo";
    - a pack, checkpoint folder or GGUF file by path;
    - a cached pack by name, in upper or lower case;
    - a pulled model by alias, "org/name" or "org/name:TAG".

    Raises UserError.
    """
    given = Path(name)
    if name != DEMO:
        # Unlike Path.is_file, false for names too long.
        if os.path.isfile(given / MANIFEST_NAME):
            return FoundModel("pack", given)
        if is_gguf(name) and os.path.isfile(name):
            return FoundModel("GGUF file", given)
        if not os.path.isfile(given / "config.json"):
            named = _packs_called(name, cache)
            if len(named) > 1:
                places = ", ".join(map(str, named))
                raise UserError(f"several packs are called {name}: give one of {places}")
            if named:
                return FoundModel("pack", named[0])
    try:
        path = resolve_model(name, cache)
    except UserError as error:
        raise type(error)(f"{error}{suggestion(name, cache)}") from None
    return FoundModel("GGUF file" if is_gguf(path.name) else "checkpoint", path)


def stored_packs(cache: Path | None) -> list[StoredPack]:
    found = map(stored_pack, _complete_in(packs_folder(cache)))
    return sorted(found, key=lambda pack: (pack.name.lower(), pack.path))


def stored_pack(path: Path) -> StoredPack:
    match = _OF_MODEL.fullmatch(path.name)
    model = match[1].replace("--", "/", 1) if match else path.name
    label, precision, nbytes, used_s = load_label(path), None, None, 0.0
    with contextlib.suppress(UserError):
        pack = Pack.open(path)
        precision, nbytes = pack.precision.value, pack.nbytes
    for name in (MANIFEST_NAME, _LABEL):
        with contextlib.suppress(OSError):
            used_s = (path / name).stat().st_mtime
    return StoredPack(path, label.name, model, label.source, precision, nbytes, used_s, label.rounded)


def packs_of(name: str, cache: Path | None) -> list[Path]:
    """Returns the pack called `name`, or the cached packs of the model `name`. Raises UserError."""
    hub_name = parse_hub_name(name)
    if hub_name is not None and not os.path.isdir(name) and not _packs_called(name, cache):
        wanted = str(HubName(hub_name.repo, quant=hub_name.quant))
        return [pack.path for pack in stored_packs(cache) if wanted in (pack.model, pack.source)]
    found = find_model(name, cache)
    if found.kind == "pack":
        return [found.path]
    if found.kind == "GGUF file":
        label, fingerprint = "", GgufModel.open(found.path).fingerprint
    else:
        checkpoint = Checkpoint.open(found.path)
        label, fingerprint = checkpoint.label, checkpoint.fingerprint
    packs = _complete_in(packs_folder(cache))
    return [one for one in packs if one.name.startswith(label) and one.name.endswith(f"-{fingerprint[:16]}")]


def the_pack_of(name: str, cache: Path | None) -> Path:
    packs = packs_of(name, cache)
    if not packs:
        verb = "import-gguf" if find_model(name, cache).kind == "GGUF file" else "pack"
        raise UserError(f"no pack was made of {name} yet: tpiedge {verb} {name}")
    if len(packs) > 1:
        names = ", ".join(load_label(path).name for path in packs)
        raise UserError(f"{name} has several packs: give one of {names}")
    return packs[0]


def name_pack(pack: Path, stem: str, precision: str, source: str, wanted: str | None = None) -> str:
    """Names a cached pack, and returns the name. If `wanted` is None, a pack without a name gets one from `stem`.
    Raises UserError."""
    label = load_label(pack)
    if wanted is None:
        if label.name != pack.name:
            return label.name
        name, taken = short_name(stem, precision), _taken(pack)
        names = (f"{name}-{number}" if number > 1 else name for number in count(1))
        wanted = next(one for one in names if one.lower() not in taken)
    else:
        check_free(pack, wanted)
        if label.name not in (pack.name, wanted):
            say(f"tpiedge: the pack was called {label.name} before")
    save_label(pack, replace(label, name=wanted, source=source))
    return wanted


def check_free(pack: Path, wanted: str | None) -> None:
    if wanted is not None and wanted.lower() in _taken(pack):
        raise UserError(f"another pack is called {wanted}: tpiedge rm it, or choose another --name")


def _complete_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"*/{MANIFEST_NAME}"))


def _taken(pack: Path) -> set[str]:
    others = [path for path in _complete_in(pack.parent) if path != pack]
    return {name.lower() for path in others for name in (load_label(path).name, path.name)}


def _packs_called(name: str, cache: Path | None) -> list[Path]:
    if not name or "/" in name or "\0" in name:
        return []
    folders = _complete_in(packs_folder(cache))
    by_folder = [path for path in folders if path.name == name]
    if by_folder or find_alias(name):  # an alias of a later version may be the name of a pack
        return by_folder
    return [path for path in folders if load_label(path).name.lower() == name.lower()]


def suggestion(name: str, cache: Path | None) -> str:
    offered = (DEMO, *aliases(), *(other for alias in aliases().values() for other in alias.also))
    names = {} if parse_hub_name(name) else {one: one for one in offered}
    here = (
        *(pack.name for pack in stored_packs(cache)),
        *(str(one.name) for one in HubCache(cache).pulled()),
    )
    names |= {one.lower(): one for one in here}
    spelled = name.lower()[:200].replace(":", "-")
    close = [names[one] for one in difflib.get_close_matches(spelled, names, 3, 0.7)]
    begun = [names[one] for one in sorted(names) if name and one.startswith(name.lower())][:3]
    found = dict.fromkeys([*begun, *close])
    return f"; did you mean {' or '.join(found)}?" if found else ""


def short_name(stem: str, precision: str) -> str:
    """Makes "SmolLM2-135M-q8" of "SmolLM2-135M.Q4_1" and "q8"."""
    cleaned = "".join(mark if mark.isascii() and (mark.isalnum() or mark in "-_.") else "-" for mark in stem)
    bare = _STORAGE_ENDING.sub("", cleaned.strip(".-_"))[:80].strip(".-_")
    return f"{bare or 'model'}-{precision}"


def check_name(name: str) -> str:
    """Returns `name`. Raises UserError if it is malformed or another model's."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"--name {quote(name)} is not a name: 1 to 96 letters, digits, '.', '_' and '-', a letter or digit first"
        )
    if name.lower() == DEMO or parse_hub_name(name):
        raise UserError(f"--name {name} already means another model (tpiedge ls --all): choose another name")
    return name


def is_complete(pack: Path) -> bool:
    """Whether the pack has a manifest and, in a writable cache, a label."""
    return (pack / MANIFEST_NAME).is_file() and ((pack / _LABEL).is_file() or not os.access(pack, os.W_OK))


def load_label(pack: Path) -> PackLabel:
    """Reads a pack's label. The default name is the folder's."""
    folder = sanitised_line(os.path.basename(os.path.abspath(pack)))
    try:
        values = read_json(pack, _LABEL, 65_536)
    except (OSError, UserError):
        return PackLabel(folder)
    match values:
        case {"name": str(name), "source": str(source)} if _NAME.fullmatch(name):
            return PackLabel(name, source, str(values.get("rounded", "")))
    return PackLabel(folder)


def save_label(pack: Path, label: PackLabel) -> None:
    write_files(pack, {_LABEL: json.dumps(asdict(label), indent=1).encode()})


def mark_used(pack: Path) -> None:
    """Notes the time of use, unless the pack is another user's."""
    with contextlib.suppress(OSError):
        os.utime(pack / _LABEL)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replaces each file as a whole. A name may contain one folder."""
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as partial:
            partial.write_bytes(data)
