"""Pooling of a text's states to its embedding, as the model's files say it: in the form of sentence-transformers."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tpiedge.errors import UserError
from tpiedge.model.folder import ConfigFields, has_file, read_json

POOLING_FOLDER: Final = "1_Pooling"
POOLING_FILE: Final = "config.json"

_USUAL: Final = "mean"
_PREFIX: Final = "pooling_mode_"
_MODE: Final = "pooling_mode"
_MODES: Mapping[str, str] = MappingProxyType(
    {"mean_tokens": "mean", "mean": "mean", "lasttoken": "last", "cls_token": "cls"}
)
"""What sentence-transformers calls the kinds; it calls others as we do."""


def usual_pooling(folder: Path | None) -> str:
    """The kind that the file in `folder` names, "mean" without one; "mean" and "last" are known here, others only by
    their names. Raises UserError for a file that cannot be read."""
    if folder is None or not has_file(folder / POOLING_FOLDER, POOLING_FILE):
        return _USUAL
    inner = folder / POOLING_FOLDER
    if os.path.islink(inner):
        raise UserError(f"{inner} is a link: put the folder itself there")
    fields = ConfigFields(str(inner / POOLING_FILE), read_json(inner, POOLING_FILE, 1_000_000))
    modes = [
        name.removeprefix(_PREFIX)
        for name in fields.names()
        if name.startswith(_PREFIX) and fields.flag(name)
    ]
    if not modes and fields.raw(_MODE) is not None:
        modes = [fields.text(_MODE)]
    return " and ".join(_MODES.get(mode, mode) for mode in modes) or _USUAL


def pooling_config(kind: str) -> Mapping[str, object]:
    """The content of the file that names this kind."""
    if kind not in _MODES.values():
        return {_MODE: kind}
    return {f"{_PREFIX}{mode}": ours == kind for mode, ours in _MODES.items() if mode != ours}
