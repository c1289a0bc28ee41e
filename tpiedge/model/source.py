"""From the name that a user types to the folder of the model."""

import os
from pathlib import Path

from tpiedge.errors import UserError
from tpiedge.model.folder import quote

__all__ = ["DEMO", "resolve_model"]

DEMO = "demo"

_DEMO_FOLDER = Path(__file__).parent / "demo"


def resolve_model(name: str) -> Path:
    """The folder of the model `name`: "demo", or a folder with config.json. Raises UserError."""
    if name == DEMO:
        if not (_DEMO_FOLDER / "config.json").is_file():
            raise UserError("this installation lacks the demo model; install tpiedge again, or name a folder")
        return _DEMO_FOLDER
    folder = Path(name)
    if name and os.path.isdir(name):  # unlike Path.is_dir, false for NUL and for names too long
        if not (folder / "config.json").is_file():
            raise UserError(f"{folder} has no config.json: name the folder of a Hugging Face checkpoint")
        return folder
    hint = ""
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        hint = f"; to fetch one: hf download {name} --local-dir {name.rpartition('/')[2]}"
    raise UserError(
        f"no model {quote(name)}: give {DEMO!r} or a folder with config.json and safetensors files{hint}"
    )
