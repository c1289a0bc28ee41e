"""What a repository of the hub holds, and which of it is worth fetching.

Names, sizes and hashes come from strangers: each is checked here, before anything is written.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from tpiedge.errors import UserError
from tpiedge.model.config import POOLING_FILE, POOLING_FOLDER
from tpiedge.model.quantisation import OLD_FILES
from tpiedge.model.template import ADDITIONAL_TEMPLATES
from tpiedge.sanitise import quote

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_POOLING = f"{POOLING_FOLDER}/{POOLING_FILE}"
_TEXTS = (
    _POOLING,
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
    "added_tokens.json",
    "tokenizer.model",
    *OLD_FILES,
    INDEX,
)
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
_TEMPLATE = re.compile(rf"{ADDITIONAL_TEMPLATES}/{_PLAIN.pattern}\.jinja")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_FILES = 100_000


@dataclass(frozen=True)
class RemoteFile:
    """A file of `size` bytes. `digest` is its sha256, or where it has 40 digits, git's sha1 of it as a blob."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True)
class Listing:
    """The files of `repo` at `commit`, by their names."""

    repo: str
    commit: str
    files: Mapping[str, RemoteFile]


def remote_file(repo: str, name: str, size: object, digest: object) -> RemoteFile | None:
    """A file as the hub describes it; None for one that lies in a folder, where that is not known. Raises UserError."""
    if not (_PLAIN.fullmatch(name) or _TEMPLATE.fullmatch(name) or name == _POOLING):
        return None
    if not isinstance(size, int) or not 0 <= size <= 1 << 40:
        raise UserError(f"{repo}: the hub gives no usable size for {quote(name)}: try another HF_ENDPOINT")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise UserError(f"{repo}: the hub gives no usable hash for {quote(name)}: try another HF_ENDPOINT")
    return RemoteFile(name, size, digest)


def refuse_paths(repo: str, names: list[str]) -> None:
    """Raises UserError where a name leads out of the repository's folder: no honest repository has such names."""
    if len(names) > _MAX_FILES:
        raise UserError(f"{repo} lists {len(names)} files, more than {_MAX_FILES}: no model needs as many")
    for name in names:
        parts = PurePosixPath(name).parts
        if not name.isprintable() or "\\" in name or name.startswith("/") or ".." in parts or not parts:
            raise UserError(
                f"{repo} lists the file {quote(name)}, which lies outside of it: nothing was fetched; "
                "get the model from a source you trust"
            )


def texts(listing: Listing) -> list[RemoteFile]:
    """Config, tokenizer, chat templates, the index of the weights. Raises UserError that names what is missing."""
    if "config.json" not in listing.files:
        raise UserError(f"{listing.repo} has no config.json: it is not a model in the Hugging Face format")
    if _SINGLE not in listing.files and INDEX not in listing.files:
        raise UserError(_without_safetensors(listing))
    chosen = [
        file for name, file in listing.files.items() if name in _TEXTS or name.endswith((".jinja", ".jinja2"))
    ]
    for file in chosen:
        if file.size > 256_000_000:
            raise UserError(f"{listing.repo}: {file.name} has {file.size} bytes; no model needs as many")
    return chosen


def all_weights(listing: Listing) -> list[RemoteFile]:
    """What the weights are at most, before the index is known."""
    single = listing.files.get(_SINGLE)
    if single is not None:
        return [single]
    return [file for name, file in listing.files.items() if name.endswith(".safetensors")]


def weights_of(listing: Listing, index: Mapping[str, object] | None) -> list[RemoteFile]:
    """The files that hold the tensors; a repository may hold the same weights a second time in other files.

    `index` is the JSON of INDEX where there is one; the single file wins over it, as everywhere else.
    """
    if _SINGLE in listing.files or index is None:
        return all_weights(listing)
    tensors = index.get("weight_map")
    names = sorted({str(name) for name in tensors.values()}) if isinstance(tensors, dict) else []
    if not names:
        raise UserError(f"{listing.repo}: {INDEX} names no files of weights")
    for name in names:
        if name not in listing.files or not name.endswith(".safetensors"):
            raise UserError(f"{listing.repo}: {INDEX} names {quote(name)}, which the repository lacks")
    return [listing.files[name] for name in names]


def _without_safetensors(listing: Listing) -> str:
    lacks = f"{listing.repo} has neither {_SINGLE} nor {INDEX}"
    if any(name.endswith(".gguf") for name in listing.files):
        return f"{lacks}, only GGUF files: pull the original model instead"
    return (
        f"{lacks}; pickle files (.bin) can run code and are never fetched: look for a safetensors version of it, or "
        f"convert it in Python with transformers: AutoModelForCausalLM.from_pretrained('{listing.repo}')"
        ".save_pretrained('FOLDER') and the same with AutoTokenizer, then give --model FOLDER"
    )
