"""Finds the folder of a model by the name that a user types, without network.

Pulled models have the layout of huggingface_hub's cache:

    models--ORG--NAME/blobs/<hash>               a file; `<hash>.incomplete` while it grows
    models--ORG--NAME/snapshots/<commit>/<file>  a link to a blob
    models--ORG--NAME/refs/<revision>            the commit of a branch or tag at the last pull

A complete snapshot appears under its commit's name; the ref is written afterwards.
"""

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from platformdirs import user_cache_path

from tpiedge.errors import UserError
from tpiedge.model.presets import aliases
from tpiedge.pack.files import lock_target
from tpiedge.sanitise import quote

DEMO = "demo"


def resolve_model(name: str, cache: Path | None = None) -> Path:
    """Finds "demo", a folder, an alias or "org/name[@revision]". Raises UserError."""
    if name == DEMO:
        return Path(__file__).parent / "demo"
    folder = Path(name)
    is_folder = bool(name) and os.path.isdir(name)  # unlike Path.is_dir, false for NUL and for names too long
    if is_folder and (folder / "config.json").is_file():
        return folder
    hub_name = parse_hub_name(name)
    if hub_name is not None and (found := HubCache(cache).snapshot(hub_name)) is not None:
        return found
    for file in sorted(folder.glob("*")) if is_folder else ():
        if is_gguf(file.name):
            refuse_gguf(file)
    if is_gguf(name) and not os.path.exists(name):
        raise UserError(f"no file {quote(name, 400)}")
    if hub_name is not None:
        raise UserError(
            f"{name} is not on this computer yet, and no folder here; to fetch it from the hub: tpiedge pull {name}"
        )
    raise UserError(
        f"no model {quote(name, 400)}: give {DEMO!r}, a folder with config.json and safetensors files, a GGUF file, "
        "a pack's name (`tpiedge ls`), or a model of the hub (org/name, or an alias from `tpiedge ls --all`)"
    )


def is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def refuse_gguf(file: Path) -> NoReturn:
    """Raises UserError that names the commands which take the file."""
    shown = shlex.quote(str(file)) if str(file).isprintable() else quote(str(file), 400)
    raise UserError(
        f"{shown} is a GGUF file: use tpiedge import-gguf {shown} first, then give the pack that it writes; run and "
        "master take the file itself"
    )


DEFAULT_REVISION = "main"

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,95}"
_NAME = re.compile(rf"({_PART}/{_PART}|{_PART})(?:@([A-Za-z0-9_][A-Za-z0-9_./\-]{{0,199}}))?")
_FORBIDDEN = ("--", "..", "//", "/.")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ENTRY = re.compile(rf"models--({_PART}?)--({_PART})")
_LOCK_S = 5.0


@dataclass(frozen=True)
class HubName:
    """`repo` is "org/name", `revision` a branch, tag or commit."""

    repo: str
    revision: str = DEFAULT_REVISION

    def __str__(self) -> str:
        return self.repo if self.revision == DEFAULT_REVISION else f"{self.repo}@{self.revision}"


@dataclass(frozen=True)
class Pulled:
    """A complete snapshot. `folder` is named by the commit."""

    name: HubName
    folder: Path
    nbytes: int


def parse_hub_name(text: str) -> HubName | None:
    """Parses an alias or "org/name", perhaps with "@revision"."""
    match = _NAME.fullmatch(text)
    if match is None or any(mark in text for mark in _FORBIDDEN) or text.endswith(("/", ".lock")):
        return None
    name, revision = match.groups()
    alias = aliases().get(name)
    if alias is not None:
        return HubName(alias.repo, revision or alias.revision)
    return HubName(name, revision or DEFAULT_REVISION) if "/" in name else None


def cache_folder(given: Path | None) -> Path:
    return given or Path(os.environ.get("TPIEDGE_CACHE") or user_cache_path("tpiedge"))


def folder_label(folder: Path) -> str:
    """Names a checkpoint's packs: "org--name" if pulled, else the folder's name."""
    real = folder.resolve()
    match = _ENTRY.fullmatch(real.parent.parent.name) if real.parent.name == "snapshots" else None
    return f"{match[1]}--{match[2]}" if match else real.name


class HubCache:
    def __init__(self, cache: Path | None = None) -> None:
        self.folder = cache_folder(cache) / "hub"

    def entry(self, repo: str) -> Path:
        return self.folder / f"models--{repo.replace('/', '--')}"

    def snapshot(self, name: HubName) -> Path | None:
        """Returns the folder of `name` if it was pulled completely."""
        entry, commit = self.entry(name.repo), name.revision
        if not _COMMIT.fullmatch(commit):
            commit = _read_ref(entry / "refs" / name.revision)
        folder = entry / "snapshots" / commit
        return folder if commit and folder.is_dir() else None

    def pulled(self) -> list[Pulled]:
        """Lists complete models by name. Without a ref, `revision` is the commit."""
        found: list[Pulled] = []
        for entry in sorted(self.folder.glob("models--*")):
            if (match := _ENTRY.fullmatch(entry.name)) is None:
                continue
            repo, refs = f"{match[1]}/{match[2]}", entry / "refs"
            named: dict[str, list[str]] = {}
            for path in sorted(refs.rglob("*")):
                if path.is_file() and not path.name.startswith("."):
                    named.setdefault(_read_ref(path), []).append(path.relative_to(refs).as_posix())
            for folder in sorted((entry / "snapshots").glob("*")):
                if _COMMIT.fullmatch(folder.name):
                    names = (HubName(repo, one) for one in named.get(folder.name, [folder.name]))
                    found += (Pulled(name, folder, _bytes_of(folder)) for name in names)
        return found

    def remove(self, repo: str) -> None:
        """Deletes all revisions of `repo`. Raises UserError during a pull."""
        entry = self.entry(repo)
        with lock_target(entry, _LOCK_S):
            shutil.rmtree(entry / "refs", ignore_errors=True)
            shutil.rmtree(entry)


def _bytes_of(folder: Path) -> int:
    files = list(folder.iterdir())
    files += [inner for one in files if one.is_dir() for inner in one.iterdir()]
    return sum(path.stat().st_size for path in files if path.is_file())


def _read_ref(path: Path) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read(64).strip()
    except OSError:
        return ""
    return text if _COMMIT.fullmatch(text) else ""
