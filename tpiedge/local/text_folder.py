"""The small files of text beside a pack's weights: config, tokenizer and template make it complete by itself."""

import os
from collections.abc import Mapping
from pathlib import Path

from tpiedge.model.folder import has_file, read_bytes
from tpiedge.model.pooling import POOLING_FILE, POOLING_FOLDER

__all__ = ["keep_text_files", "write_files"]

_MAX_BYTES = 64_000_000
_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


def keep_text_files(source: Path, target: Path) -> None:
    """Copies config, tokenizer and template from one folder to another, which is made if it is not there."""
    found = (name for name in _FILES if has_file(source, name))
    write_files(target, {name: read_bytes(source, name, _MAX_BYTES) for name in found})
    inner = source / POOLING_FOLDER
    if has_file(inner, POOLING_FILE) and not os.path.islink(inner):
        write_files(target / POOLING_FOLDER, {POOLING_FILE: read_bytes(inner, POOLING_FILE, _MAX_BYTES)})


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files, each as a whole: another command may do the same at the same time."""
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        partial = folder / f".{name}.{os.getpid()}.partial"
        try:
            partial.write_bytes(data)
            partial.replace(folder / name)
        finally:
            partial.unlink(missing_ok=True)
