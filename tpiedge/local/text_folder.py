"""The small files of text beside a pack's weights: config, tokenizer and template make it complete by itself."""

import os
from collections.abc import Mapping
from pathlib import Path

from tpiedge.model.folder import has_file, list_files, read_bytes
from tpiedge.model.pooling import POOLING_FILE, POOLING_FOLDER
from tpiedge.model.template import ADDITIONAL_TEMPLATES

_MAX_BYTES = 64_000_000
_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)


def keep_text_files(source: Path, target: Path) -> None:
    """Copies config, tokenizer and template from one folder to another, which is made if it is not there."""
    found = {name: read_bytes(source, name, _MAX_BYTES) for name in _FILES if has_file(source, name)}
    for inner, suffix in ((ADDITIONAL_TEMPLATES, ".jinja"), (POOLING_FOLDER, POOLING_FILE)):
        for name in list_files(source, inner, suffix):
            found[f"{inner}/{name}"] = read_bytes(source, name, _MAX_BYTES, inner)
    write_files(target, found)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files, each as a whole: another command may do the same at the same time. A name may be that of a file
    in a folder of `folder`."""
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            partial.write_bytes(data)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
