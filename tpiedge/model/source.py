"""From the name that a user types to the folder of the model. No network: `tpiedge pull` fetches."""

import os
import shlex
from pathlib import Path
from typing import NoReturn

from tpiedge.errors import UserError
from tpiedge.model.hub.cache import HubCache, parse_hub_name
from tpiedge.sanitise import quote

DEMO = "demo"

_GGUF = ".gguf"
_PATH = 400
"""Characters of a path that are shown: what is wrong with one is mostly at its end."""
_DEMO_FOLDER = Path(__file__).parent / "demo"


def resolve_model(name: str, cache: Path | None = None) -> Path:
    """The folder of the model `name`. Raises UserError.

    A name is "demo", a folder with config.json, or an alias or "org/name[@revision]" that was pulled into `cache`
    (by default TPIEDGE_CACHE or the user's cache folder). A folder wins over a model of the same name on the hub.
    """
    if name == DEMO:
        if not (_DEMO_FOLDER / "config.json").is_file():
            raise UserError("this installation lacks the demo model; install tpiedge again, or name a folder")
        return _DEMO_FOLDER
    folder = Path(name)
    is_folder = bool(name) and os.path.isdir(name)  # unlike Path.is_dir, false for NUL and for names too long
    if is_folder and (folder / "config.json").is_file():
        return folder
    if is_gguf(name) and os.path.isfile(name):
        refuse_gguf(folder)
    hub_name = parse_hub_name(name)
    if hub_name is not None:
        found = HubCache(cache).snapshot(hub_name)
        if found is None:
            if is_folder:
                _refuse_gguf_folder(folder)
            _refuse_file(name)
            raise UserError(
                f"{name} is not on this computer yet, and no folder here; to fetch it from the hub: tpiedge pull {name}"
            )
        return found
    if is_folder:
        _refuse_gguf_folder(folder)
        raise UserError(f"{folder} has no config.json: name the folder of a Hugging Face checkpoint")
    _refuse_file(name)
    raise UserError(
        f"no model {quote(name)}: give {DEMO!r}, a folder with config.json and safetensors files, a GGUF file, "
        "a pack's name (`tpiedge ls`), or a model of the hub (org/name, or an alias from `tpiedge ls --all`)"
    )


def _refuse_file(name: str) -> None:
    if os.path.isfile(name):
        raise UserError(
            f"{name} is no model: give the folder that it is in, or a GGUF file (its name ends in .gguf)"
        )
    if is_gguf(name):
        raise UserError(
            f"there is no file {quote(name, _PATH)}: give the path of a GGUF file, or a name that `tpiedge ls` has"
        )


def is_gguf(name: str) -> bool:
    """Whether a file of that name is taken for a GGUF file."""
    return name.lower().endswith(_GGUF)


def _refuse_gguf_folder(folder: Path) -> None:
    """Name the first GGUF file that lies there, if one does."""
    for file in sorted(folder.glob("*")):
        if is_gguf(file.name):
            refuse_gguf(file)


def refuse_gguf(file: Path) -> NoReturn:
    """Raises UserError with the verbs that take the file."""
    shown = _shell_word(file)
    raise UserError(
        f"{shown} is a GGUF file: use tpiedge import-gguf {shown} first, then give the pack that it writes; run and "
        "master take the file itself"
    )


def _shell_word(file: Path) -> str:
    """The path to be pasted behind a command: whole, no option, and on one line whose spaces may be merged."""
    path = str(file)
    if path.startswith("-"):
        path = f"./{path}"
    if path.isprintable() and path == " ".join(path.split()):
        return shlex.quote(path)
    return "$'" + "".join(map(_escaped, path)) + "'"


def _escaped(mark: str) -> str:
    """The mark as shells read it between $' and '."""
    if mark.isprintable() and mark not in " '\\":
        return mark
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(mark))
