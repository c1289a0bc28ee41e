"""Parses names of GGUF files: how a file is quantised, which parts a split file has, which file a tag means."""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from tpiedge.errors import UserError
from tpiedge.units import format_bytes

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|FP?16|FP?32))$", re.IGNORECASE)
# Q4_0_4_4 and its like are types that llama.cpp removed.
_UNREADABLE = re.compile(r"(?:UD-)?(?:I?Q1_|IQ[23]_|TQ|Q4_0_\d)")
_PROJECTOR = "mmproj"


def stem_of(name: str) -> str:
    """Returns "model-Q8_0" for "model-Q8_0.gguf" and for its parts "model-Q8_0-00001-of-00002.gguf"."""
    match = _PART.fullmatch(name)
    return match[1] if match else name[: -len(".gguf")]


def parts_of(name: str, count: int) -> list[str]:
    """Returns the names of all parts of a split file. Returns [] unless `name` is the first part."""
    match = _PART.fullmatch(name)
    if match is None or (int(match[2]), int(match[3])) != (1, count):
        return []
    return [f"{match[1]}-{part:05}-of-{count:05}{name[-5:]}" for part in range(1, count + 1)]


def quant_of(stem: str) -> str:
    """Returns the quantisation at the end of a name, like "Q4_K_M", or ""."""
    match = _QUANT.search(stem)
    return match[1].upper() if match else ""


def projectors(names: Iterable[str]) -> list[str]:
    """Returns the image projectors (mmproj) among `names`."""
    return [name for name in names if _is_gguf(name) and _PROJECTOR in name.lower()]


def models_in(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns stem -> the model's files, in order. A whole file replaces parts; incomplete models are left out."""
    known = {name for name in names if _is_gguf(name) and _PROJECTOR not in name.lower()}
    found: dict[str, list[str]] = {}
    for name in sorted(known):  # parts before the whole file, which replaces them
        match = _PART.fullmatch(name)
        if match and int(match[3]) > len(known):  # of a hostile listing, perhaps
            continue
        parts = parts_of(name, int(match[3])) if match else [name]
        if parts and set(parts) <= known:
            found[stem_of(name)] = parts
    return found


def chosen_gguf(repo: str, tag: str, sizes: Mapping[str, int]) -> list[str]:
    """Returns the files that a tag means. The tag is a quantisation, or a file's name without its ending. `sizes`
    has each file's number of bytes. Raises a UserError that says what to type."""
    models = models_in(sizes)
    if not models:
        raise UserError(f"{repo} has no GGUF files: tpiedge pull {repo} takes a checkpoint")
    found = _called(models, tag)
    if not found:
        raise UserError(f"{repo} has no GGUF file for {tag}: {offered(repo, sizes)}")
    if len(found) > 1:
        several = ", ".join(f"{repo}:{PurePosixPath(stem).name}" for stem in found)
        raise UserError(f"{repo} has several GGUF files for {tag}: give one of {several}")
    if not _is_readable(quant_of(found[0])):
        raise UserError(f"{repo}:{tag}: tpiedge cannot read {quant_of(found[0])}: {offered(repo, sizes)}")
    return models[found[0]]


def offered(repo: str, sizes: Mapping[str, int]) -> str:
    """Lists the readable models of `repo` as people type them, the smallest first. `sizes`: the bytes of all files."""
    models = models_in(sizes)
    shown: list[tuple[int, str]] = []
    for stem, names in models.items():
        quant = quant_of(stem)
        tag = quant if quant and _called(models, quant) == [stem] else PurePosixPath(stem).name
        if _is_readable(quant):
            shown.append((sum(sizes[name] for name in names), tag))
    words = ", ".join(f"{repo}:{tag} ({format_bytes(nbytes)})" for nbytes, tag in sorted(shown))
    return f"give one of {words}" if words else "it has none that tpiedge reads"


def _called(models: Mapping[str, list[str]], tag: str) -> list[str]:
    wanted = tag.upper()
    return [stem for stem in models if wanted in (quant_of(stem), PurePosixPath(stem).name.upper())]


def _is_readable(quant: str) -> bool:
    return not _UNREADABLE.match(quant)


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")
