"""Short names of models on the hub: one file `configs/models/NAME.toml` each.

A file says where the model is and under which terms; its shape is a preset's, so that no number is stated twice.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tpiedge.errors import InternalError
from tpiedge.model.config import ModelConfig
from tpiedge.model.presets import preset

# Beside the package in a checkout of the sources, inside of it where it was installed from a wheel.
_FOLDERS = tuple(Path(__file__).parents[up] / "configs" / "models" for up in (1, 2))


@dataclass(frozen=True)
class Alias:
    """`repo` is "org/name" on the hub, `revision` a branch, tag or commit of it, `shape` the name of a preset.

    Where `gated`, the hub gives the files only to accounts that have accepted the licence.
    """

    name: str
    repo: str
    revision: str
    gated: bool
    licence: str
    shape: str
    note: str = ""

    @property
    def config(self) -> ModelConfig:
        """The shape, known without any file of the model."""
        return ModelConfig.from_huggingface(preset(self.shape), f"preset {self.shape}")


@functools.cache
def aliases() -> Mapping[str, Alias]:
    """Name -> Alias, in the order of names. Empty where the installation lacks the files."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    paths = sorted(folder.glob("*.toml")) if folder else []
    return MappingProxyType({path.stem: load_alias(path) for path in paths})


def load_alias(path: Path) -> Alias:
    """Raises InternalError: these files are part of tpiedge."""
    fields = tomllib.loads(path.read_text(encoding="utf-8"))
    try:
        alias = Alias(path.stem, **fields)
    except TypeError as error:
        raise InternalError(f"{path}: {error}") from None
    kinds = {key: bool if key == "gated" else str for key in fields}
    wrong = [key for key, kind in kinds.items() if not isinstance(fields[key], kind)]
    if wrong:
        raise InternalError(f"{path}: {', '.join(wrong)} of the wrong type")
    return alias
