"""Finds a model's folder by the name that a user types, without network.

Pulled models have the layout of huggingface_hub's cache:

    models--ORG--NAME/blobs/<hash>               a file; `<hash>.incomplete` while it grows
    models--ORG--NAME/snapshots/<commit>/<file>  a link to a blob
    models--ORG--NAME/refs/<revision>            the commit of a branch or tag at the last pull

A snapshot appears under its commit's name when it is complete. The ref is written afterwards. Each GGUF file has its
own folder, models--ORG--NAME--TAG.
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
from tpiedge.model.gguf.names import quant_of
from tpiedge.model.presets import find_alias, unsupported
from tpiedge.pack.files import lock_target
from tpiedge.sanitise import quote

DEMO = "demo"


class NotPulled(UserError):
    """The name fits a model on the hub that is not on this computer."""


def resolve_model(name: str, cache: Path | None = None) -> Path:
    """Returns a model's folder, or the file of a GGUF model. `name`: "demo", a folder with config.json, an alias,
    "org/name[@revision]" or "org/name:TAG". Raises UserError."""
    if name == DEMO:
        return Path(__file__).parent / "demo"
    folder = Path(name)
    is_folder = bool(name) and os.path.isdir(name)  # unlike Path.is_dir, false for NUL and for names too long
    if is_folder and (folder / "config.json").is_file():
        return folder
    hub_name = parse_hub_name(name)
    if hub_name is not None and (found := HubCache(cache).snapshot(hub_name)) is not None:
        return min(file for file in found.iterdir() if is_gguf(file.name)) if hub_name.quant else found
    for file in sorted(folder.glob("*")) if is_folder else ():
        if is_gguf(file.name):
            refuse_gguf(file)
    if is_gguf(name) and not os.path.exists(name) and not (hub_name and hub_name.quant):
        raise UserError(f"no file {quote(name, 400)}")
    if hub_name is not None:
        raise NotPulled(
            f"{name} is not on this computer yet, and no folder here; to fetch it from the hub: tpiedge pull {name}"
        )
    if words := unsupported(name):
        raise UserError(words)
    raise UserError(
        f"no model {quote(name, 400)}: give {DEMO!r}, a folder with config.json and safetensors files, a GGUF file, "
        "a pack's name (`tpiedge ls`), or a model of the hub (org/name, org/name:Q4_K_M, or an alias from "
        "`tpiedge ls --all`)"
    )


def is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def refuse_gguf(file: Path) -> NoReturn:
    """Raises a UserError that names the commands for the file."""
    shown = shlex.quote(str(file)) if str(file).isprintable() else quote(str(file), 400)
    raise UserError(
        f"{shown} is a GGUF file: use tpiedge import-gguf {shown} first, then give the pack that it writes; run and "
        "master take the file itself"
    )


DEFAULT_REVISION = "main"

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,95}"
_NAME = re.compile(
    rf"({_PART}/{_PART}|{_PART})(?::({_PART}))?(?:@([A-Za-z0-9_][A-Za-z0-9_./\-]{{0,199}}))?(?::({_PART}))?"
)
_SITE = re.compile(r"(?:https?://)?(?:hf\.co|huggingface\.co)/", re.IGNORECASE)
_FORBIDDEN = ("--", "..", "//", "/.")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ENTRY = re.compile(rf"models--({_PART}?)--({_PART}?)(?:--({_PART}))?")
_LOCK_S = 5.0


@dataclass(frozen=True)
class HubName:
    """`repo` is "org/name". `revision` is a branch, tag or commit. `quant` is a GGUF file's tag in upper case, like
    "Q4_K_M"; "" means a checkpoint."""

    repo: str
    revision: str = DEFAULT_REVISION
    quant: str = ""

    def __str__(self) -> str:
        tag, at = self.quant and f":{self.quant}", f"@{self.revision}"
        return f"{self.repo}{tag}{'' if self.revision == DEFAULT_REVISION else at}"


@dataclass(frozen=True)
class Pulled:
    """A complete snapshot. `folder` is named by the commit."""

    name: HubName
    folder: Path
    nbytes: int


def parse_hub_name(text: str) -> HubName | None:
    """Parses an alias or "org/name", with optional ":TAG" of a GGUF file and "@revision". Returns None for other
    texts."""
    bare = _SITE.sub("", text, count=1) if _SITE.match(text) else text
    match = _NAME.fullmatch(bare)
    if match is None or any(mark in bare for mark in _FORBIDDEN) or bare.endswith(("/", ".lock")):
        return None
    name, tag, revision, late_tag = match.groups()
    if late_tag and (tag or "/" not in name):
        return None
    if "/" not in name:
        return _parse_alias(bare.partition("@")[0], revision)
    tag = (tag or late_tag or "").upper().removesuffix(".GGUF")
    return HubName(name, revision or DEFAULT_REVISION, tag)


def _parse_alias(name: str, revision: str | None) -> HubName | None:
    """Parses an alias with a tag, like "llama3.2:1b-instruct-q4_K_M"."""
    quant = ""
    alias = find_alias(name)
    if alias is None and (quant := quant_of(name)):
        alias = find_alias(name[: -len(quant) - 1])
    if alias is None or (quant and not alias.quant):
        return None
    return HubName(alias.repo, revision or DEFAULT_REVISION, quant or alias.quant)


def cache_folder(given: Path | None) -> Path:
    return given or Path(os.environ.get("TPIEDGE_CACHE") or user_cache_path("tpiedge"))


def folder_label(folder: Path) -> str:
    """Returns the name for packs of a checkpoint: "org--name" if it was pulled, else the folder's name."""
    name = pulled_name(folder)
    return name.repo.replace("/", "--") if name else folder.resolve().name


def pulled_name(snapshot: Path) -> HubName | None:
    """Returns the name under which the folder was pulled, without the revision; None for other folders."""
    real = snapshot.resolve()
    match = _ENTRY.fullmatch(real.parent.parent.name) if real.parent.name == "snapshots" else None
    return HubName(f"{match[1]}/{match[2]}", quant=match[3] or "") if match else None


class HubCache:
    def __init__(self, cache: Path | None = None) -> None:
        self.folder = cache_folder(cache) / "hub"

    def entry(self, name: HubName) -> Path:
        return self.folder / "--".join(("models", *name.repo.split("/"), *filter(None, [name.quant])))

    def snapshot(self, name: HubName) -> Path | None:
        """Returns the folder of `name` if it was pulled completely, else None."""
        entry, commit = self.entry(name), name.revision
        if not _COMMIT.fullmatch(commit):
            commit = _read_ref(entry / "refs" / name.revision)
        folder = entry / "snapshots" / commit
        return folder if commit and folder.is_dir() else None

    def pulled(self) -> list[Pulled]:
        """Lists complete models, sorted by name. If no ref leads to a model, its `revision` is the commit."""
        found: list[Pulled] = []
        for entry in sorted(self.folder.glob("models--*")):
            if (match := _ENTRY.fullmatch(entry.name)) is None:
                continue
            repo, quant, refs = f"{match[1]}/{match[2]}", match[3] or "", entry / "refs"
            named: dict[str, list[str]] = {}
            for path in sorted(refs.rglob("*")):
                if path.is_file() and not path.name.startswith("."):
                    named.setdefault(_read_ref(path), []).append(path.relative_to(refs).as_posix())
            for folder in sorted((entry / "snapshots").glob("*")):
                if _COMMIT.fullmatch(folder.name):
                    names = (HubName(repo, one, quant) for one in named.get(folder.name, [folder.name]))
                    found += (Pulled(name, folder, _bytes_of(folder)) for name in names)
        return found

    def remove(self, name: HubName) -> None:
        """Deletes all revisions of the checkpoint or GGUF file. Raises UserError during a pull."""
        entry = self.entry(name)
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
