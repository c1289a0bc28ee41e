"""Defines aliases of models on the hub, and presets, which are shapes of real models.

An alias is a file `configs/models/NAME.toml`. The presets are those of the families.
"""

import copy
import functools
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from tpiedge.errors import UserError
from tpiedge.model.families import FAMILIES

PRESETS: Final[Mapping[str, Mapping[str, object]]] = {
    name: values for family in FAMILIES.values() for name, values in family.presets.items()
}


def preset(name: str) -> dict[str, object]:
    """Returns a copy of the config.json of preset `name`. Raises UserError."""
    try:
        return copy.deepcopy(dict(PRESETS[name]))
    except KeyError:
        raise UserError(f"no preset {name!r}: choose one of {', '.join(sorted(PRESETS))}") from None


# The folder is in an installed package, or beside the package in a checkout.
_FOLDERS = tuple(Path(__file__).parents[up] / "configs" / "models" for up in (1, 2))


@dataclass(frozen=True)
class Alias:
    """`repo` is "org/name". `quant` is the tag of a GGUF file; "" means a checkpoint. `shape` names a preset. If
    `gated` is true, users must accept a licence. `experts` is the precision of a checkpoint's experts; "" means bf16.
    `also` has other names, like Ollama's name for the default size."""

    name: str
    repo: str
    gated: bool
    licence: str
    shape: str
    quant: str = ""
    experts: str = ""
    also: tuple[str, ...] = ()
    note: str = ""


@functools.cache
def aliases() -> Mapping[str, Alias]:
    """Returns name -> Alias, sorted."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    found: dict[str, Alias] = {}
    for path in sorted(folder.glob("*.toml")) if folder else ():
        values = {"name": path.stem, **tomllib.loads(path.read_text("utf-8"))}
        found[path.stem] = msgspec.convert(values, Alias)
    return MappingProxyType(found)


def find_alias(name: str) -> Alias | None:
    """Returns the alias called `name`, ignoring case, else None. Ollama's "llama3.2:3b" and "llama3.2" find
    "llama3.2-3b"."""
    plain = name.lower().removesuffix(":latest").replace(":", "-", 1).removesuffix("-instruct")
    return aliases().get(plain) or next((one for one in aliases().values() if plain in one.also), None)


# Families of models and their versions that are computed, as "gemma-?3".
_COMPUTED = "|".join(
    f"{found[1]}-?{re.escape(found[2])}"
    for name in (*PRESETS, *FAMILIES)
    if (found := re.match(r"([a-z]+)([\d.]+)", name))
)
# Families that people know from Ollama, and that `model/families/` lacks; it has some versions of the first four.
_UNSUPPORTED = re.compile(
    rf"((?!({_COMPUTED})(?![a-z]))(gemma|granite|olmo|phi)|"
    r"codegemma|command-r|deepseek-v|glm|kimi|llama4|llava|minicpm|moondream|qwen2.5vl|"
    r"qwen3-next|qwen3-vl|qwen3.5|qwen3[:-]235b|starcoder)(?![a-z])[^/]*",
    re.IGNORECASE,
)
_SIZE = re.compile(r"[:-]e?(\d{1,4}(?:\.\d{1,4})?)([mb])\b")


def unsupported(name: str) -> str | None:
    """Returns a message if `name` is of an unsupported family, else None. The message names aliases of similar
    size."""
    if not _UNSUPPORTED.fullmatch(name):
        return None
    wanted = _billions(name) or 4.0  # which runs well on a few weak machines
    sized = [(_billions(one.name), one.name) for one in aliases().values() if not one.gated]
    near = sorted((abs(math.log(size / wanted)), alias) for size, alias in sized if size)[:2]
    return (
        f"{name} is not supported yet; nearest: {' or '.join(alias for _, alias in near)} (tpiedge ls --all)"
    )


def _billions(name: str) -> float | None:
    match = _SIZE.search(name.lower())
    return float(match[1]) * (1e-3 if match[2] == "m" else 1) or None if match else None
