"""From the name that a user types to the folder of the model. No network: `tpiedge pull` fetches."""

import os
import shlex
from pathlib import Path
from typing import NoReturn

from tpiedge.errors import UserError
from tpiedge.model.hub.cache import HubCache, parse_hub_name
from tpiedge.sanitise import quote

DEMO = "demo"

_DEMO_FOLDER = Path(__file__).parent / "demo"


def resolve_model(name: str, cache: Path | None = None) -> Path:
    """The folder of the model `name`. Raises UserError.

    A name is "demo", a folder with config.json, or an alias or "org/name[@revision]" that was pulled into `cache`
    (by default TPIEDGE_CACHE or the user's cache folder). A folder wins over a model of the same name on the hub.
    """
    if name == DEMO:
        return _DEMO_FOLDER
    folder = Path(name)
    is_folder = bool(name) and os.path.isdir(name)  # unlike Path.is_dir, false for NUL and for names too long
    if is_folder and (folder / "config.json").is_file():
        return folder
    files = [folder] if is_gguf(name) and os.path.isfile(name) else []
    hub_name = parse_hub_name(name)
    found = HubCache(cache).snapshot(hub_name) if hub_name is not None and not files else None
    if found is not None:
        return found
    if is_folder:
        files = [file for file in sorted(folder.glob("*")) if is_gguf(file.name)]
    if files:
        refuse_gguf(files[0])
    if hub_name is not None and not is_gguf(name):
        raise UserError(
            f"{name} is not on this computer yet, and no folder here; to fetch it from the hub: tpiedge pull {name}"
        )
    raise UserError(
        f"no model {quote(name, 400)}: give {DEMO!r}, a folder with config.json and safetensors files, a GGUF file, "
        "a pack's name (`tpiedge ls`), or a model of the hub (org/name, or an alias from `tpiedge ls --all`)"
    )


def is_gguf(name: str) -> bool:
    """Whether a file of that name is taken for a GGUF file."""
    return name.lower().endswith(".gguf")


def refuse_gguf(file: Path) -> NoReturn:
    """Raises UserError with the verbs that take the file."""
    shown = shlex.quote(str(file)) if str(file).isprintable() else quote(str(file), 400)
    raise UserError(
        f"{shown} is a GGUF file: use tpiedge import-gguf {shown} first, then give the pack that it writes; run and "
        "master take the file itself"
    )
