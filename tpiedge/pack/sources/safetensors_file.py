"""How tensors are laid out in the safetensors files that tpiedge writes: headers, shards and their index.

The format's own library writes a file from tensors that are all in memory. These files are larger than that, so their
headers are made here and their tensors follow piece by piece; the library then says what it finds (`check_written`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tpiedge.errors import InternalError
from tpiedge.pack.dtypes import SourceDtype
from tpiedge.pack.specs import JSON

INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True)
class TensorEntry:
    """A tensor to write, row-major."""

    name: str
    dtype: SourceDtype
    shape: tuple[int, ...]
    nbytes: int


_AnyEntry = TypeVar("_AnyEntry", bound=TensorEntry)


def header(tensors: Sequence[TensorEntry]) -> bytes:
    """The length of the JSON (8 bytes, little endian) and the JSON, padded with spaces to a multiple of 8."""
    entries: dict[str, JSON] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def check_written(path: Path, tensors: Sequence[TensorEntry]) -> None:
    """Raise InternalError unless the format's own library finds these tensors, and no others, in the file."""
    from safetensors import SafetensorError, safe_open

    expected = {tensor.name: (tensor.dtype, tensor.shape) for tensor in tensors}
    try:
        with safe_open(path, framework="numpy") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            found = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
    except SafetensorError as error:
        raise InternalError(f"what was written to {path} is no safetensors file: {error}") from error
    if found != expected:
        raise InternalError(f"what was written to {path} has other tensors than it should")


def split_shards(tensors: Sequence[_AnyEntry], limit: int) -> list[list[_AnyEntry]]:
    """Cut into runs of at most `limit` bytes; a larger tensor has a shard of its own."""
    shards: list[list[_AnyEntry]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    return shards


def shard_names(count: int) -> list[str]:
    """The file names that every loader expects of `count` shards."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{shard:05d}-of-{count:05d}.safetensors" for shard in range(1, count + 1)]


def index(shards: Mapping[str, Sequence[TensorEntry]]) -> dict[str, JSON]:
    """The content of INDEX_NAME for shards by file name."""
    total = sum(tensor.nbytes for shard in shards.values() for tensor in shard)
    weight_map: dict[str, JSON] = {tensor.name: name for name, shard in shards.items() for tensor in shard}
    return {"metadata": {"total_size": total}, "weight_map": weight_map}
