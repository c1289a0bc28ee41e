"""A Hugging Face checkpoint in a local folder: where each tensor's bytes lie, nothing loaded.

Only safetensors files are read. Pickle files (`.bin`, `.pt`) can run code when they are opened and are never
touched; `auto_map` and other remote code in the folder is never looked at.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from tpiedge.errors import UserError
from tpiedge.model.config import MAX_CONFIG_BYTES, ModelConfig
from tpiedge.model.fields import ConfigFields
from tpiedge.model.folder import has_file, open_file, parse_json, read_bytes, resolve_file
from tpiedge.model.int4_checkpoint import WEIGHT, joined_tensors
from tpiedge.model.quantisation import OLD_FILES, QUANTISATION_KEY, Quantisation, of_old_file
from tpiedge.model.safetensors_header import MAX_TENSORS, Header, read_header
from tpiedge.model.spec import EMBEDDING, HEAD
from tpiedge.pack.sources.imported import AnyTensor, ImportedTensor, open_tensors
from tpiedge.pack.sources.source import SourceTensor
from tpiedge.pack.specs import ModelSpec
from tpiedge.sanitise import quote, sanitised_line

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 10_000_000
_MAX_SHARDS = 10_000
_SOURCE_DTYPES = ("F32", "F16", "BF16")
_COMPARED_NUMBERS = 1 << 20
_PREFIX = "model."
_HEADLESS = ("embed_tokens.", "layers.", "norm.")
_HEADLESS_ADVICE = (
    "write true for tie_word_embeddings in config.json if it is a model of embeddings, which needs no LM head"
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class Checkpoint:
    """The config and the tensors of a folder, each with the real path of its file.

    `fingerprint` (64 hex digits) changes when the config, a header, a size or a modification time does: it
    names what was packed without reading the weights. `quantisation` says how others have quantised it, if they have.
    """

    folder: Path
    config: ModelConfig
    tensors: Mapping[str, AnyTensor]
    fingerprint: str
    quantisation: Quantisation | None = None

    @staticmethod
    def open(folder: Path) -> "Checkpoint":
        """Read the config and all headers. Raises UserError that names file, tensor or field."""
        config = ModelConfig.open(folder)
        digest = hashlib.sha256(b"tpiedge checkpoint 1\n")
        for name in ("config.json", "generation_config.json"):
            data = read_bytes(folder, name, MAX_CONFIG_BYTES) if has_file(folder, name) else b""
            digest.update(f"{name} {len(data)}\n".encode() + data)
        weight_map = _weight_map(folder)
        shards: dict[str, tuple[Path, Header]] = {}
        tensor_count = 0
        for shard in _shard_names(folder, weight_map):
            path, header, state = _read_shard(folder, shard)
            shards[shard] = path, header
            digest.update(f"{shard} {state} {header.digest}\n".encode())
            tensor_count += len(header.entries)
            if tensor_count > MAX_TENSORS:
                raise UserError(f"{folder}: more than {MAX_TENSORS} tensors; no supported model has as many")
        located = _usual_names(dict(_locate(folder, weight_map, shards)), tied=config.tie_word_embeddings)
        old = _old_file(folder, located)
        if old:
            data = read_bytes(folder, old, MAX_CONFIG_BYTES)
            digest.update(f"{old} {len(data)}\n".encode() + data)
        quantisation = _quantisation(folder, old)
        tensors = joined_tensors(located, quantisation) if quantisation else located
        if not any(isinstance(tensor, ImportedTensor) for tensor in tensors.values()):
            quantisation = None  # whatever config.json says: the weights are plain
        return Checkpoint(folder, config, MappingProxyType(tensors), digest.hexdigest(), quantisation)

    def check(self, spec: ModelSpec) -> None:
        """Raise UserError that names the first tensor of `spec` that is missing or has a wrong shape.

        Also where config.json ties the LM head to the embedding, but the checkpoint has another one.
        """
        for source, shape in _sources(spec):
            info = self.tensors.get(source)
            if info is None:
                advice = _HEADLESS_ADVICE if source == HEAD else "check that config.json belongs to it"
                raise UserError(
                    f"{self.folder}: tensor {source} is missing from the checkpoint; "
                    f"download the model again, or {advice}"
                )
            if info.shape != shape:
                raise UserError(
                    f"{_file(info)}: tensor {source} has shape {_times(info.shape)}, config.json asks for "
                    f"{_times(shape)}; check that config.json belongs to the checkpoint"
                )
            if info.dtype not in _SOURCE_DTYPES:
                raise UserError(
                    f"{_file(info)}: tensor {source} is stored as {info.dtype}; supported are "
                    f"{', '.join(_SOURCE_DTYPES)}: give the original, unquantised checkpoint"
                )
        head = self.tensors.get(HEAD)
        if spec.tied and head and not _same_numbers(head, self.tensors[spec.embedding.matrices[0].source]):
            raise UserError(
                f"{self.folder}: config.json ties {HEAD} to the embedding, but the checkpoint has a different "
                "one; write false for tie_word_embeddings in config.json"
            )


def _sources(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    for blob in (spec.embedding, *spec.layers, spec.head):
        for matrix in blob.matrices:
            yield matrix.source, matrix.source_shape
        for vector in blob.vectors:
            yield vector.source, (vector.length,)


def _old_file(folder: Path, tensors: Iterable[str]) -> str | None:
    """Which of OLD_FILES says how the tensors were quantised; beside plain ones, such a file is another program's."""
    if not any(name.endswith(WEIGHT) for name in tensors):
        return None
    return next((name for name in OLD_FILES if has_file(folder, name)), None)


def _quantisation(folder: Path, old: str | None) -> Quantisation | None:
    where = folder / "config.json"
    config = parse_json(read_bytes(folder, "config.json", MAX_CONFIG_BYTES), str(where))
    if QUANTISATION_KEY not in config and old:  # as such checkpoints once were published
        where = folder / old
        values = parse_json(read_bytes(folder, old, MAX_CONFIG_BYTES), str(where))
        config = {QUANTISATION_KEY: of_old_file(old, values)}
    return Quantisation.of(ConfigFields(str(where), config))


def _file(tensor: AnyTensor) -> Path:
    return tensor.files[0] if isinstance(tensor, ImportedTensor) else tensor.file


def _same_numbers(one: AnyTensor, other: AnyTensor) -> bool:
    """Whether two tensors are equal bit for bit; stops at the first difference."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with closing(open_tensors({"one": one, "other": other})) as source:
        step = max(1, _COMPARED_NUMBERS // one.shape[1])
        for first in range(0, one.shape[0], step):
            count = min(step, one.shape[0] - first)
            rows = [source.read_rows(name, first, count) for name in ("one", "other")]
            if rows[0].tobytes() != rows[1].tobytes():
                return False
    return True


def _weight_map(folder: Path) -> Mapping[str, str] | None:
    """Tensor -> file name from the index; None if one file holds all. The single file wins, as elsewhere."""
    if has_file(folder, _SINGLE):
        return None
    if not has_file(folder, _INDEX):
        _refuse_without_safetensors(folder)
    where = folder / _INDEX
    index = parse_json(read_bytes(folder, _INDEX, _MAX_INDEX_BYTES), str(where), unique_keys=True)
    weights = index.get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise UserError(f"{where}: weight_map is missing or empty; download the model again")
    if len(weights) > MAX_TENSORS:
        raise UserError(f"{where}: weight_map lists {len(weights)} tensors, more than {MAX_TENSORS}")
    for name, shard in weights.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors"):
            raise UserError(
                f"{where}: tensor {quote(name)} is said to be in {quote(shard)}, not a .safetensors file"
            )
    return weights


def _shard_names(folder: Path, weight_map: Mapping[str, str] | None) -> list[str]:
    if weight_map is None:
        return [_SINGLE]
    names = sorted(set(weight_map.values()))
    if len(names) > _MAX_SHARDS:
        raise UserError(f"{folder / _INDEX}: names {len(names)} files, more than {_MAX_SHARDS}")
    if len({name.casefold() for name in names}) != len(names):
        raise UserError(f"{folder / _INDEX}: names two files that differ only in upper and lower case")
    return names


def _read_shard(folder: Path, name: str) -> tuple[Path, Header, str]:
    """(real path, header, size and modification time)."""
    path = resolve_file(folder, name)
    try:
        with open_file(folder, name) as file:
            stat = os.fstat(file.fileno())
            return path, read_header(file, str(folder / name)), f"{stat.st_size} {stat.st_mtime_ns}"
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check the disk") from None


def _locate(
    folder: Path, weight_map: Mapping[str, str] | None, shards: Mapping[str, tuple[Path, Header]]
) -> Iterator[tuple[str, SourceTensor]]:
    if weight_map is None:
        weight_map = dict.fromkeys(shards[_SINGLE][1].entries, _SINGLE)
    for name, shard in weight_map.items():
        path, header = shards[shard]
        entry = header.entries.get(name)
        if entry is None:
            raise UserError(
                f"{folder / shard}: tensor {quote(name, 100)} is missing, though {_INDEX} says it is there; "
                "download the model again"
            )
        yield name, SourceTensor(path, entry.dtype, entry.shape, entry.offset, entry.nbytes)


def _usual_names(tensors: dict[str, SourceTensor], *, tied: bool) -> dict[str, SourceTensor]:
    """The tensors by the names of a model with its LM head: one that was saved without it lacks a prefix, and a `tied`
    one may have the embedding as the head."""
    named = {f"{_PREFIX}{name}" if name.startswith(_HEADLESS) else name: one for name, one in tensors.items()}
    found = named | {name: one for name, one in tensors.items() if name.startswith(_PREFIX)}
    if tied and EMBEDDING not in found and HEAD in found:
        found[EMBEDDING] = found.pop(HEAD)
    return found


def _refuse_without_safetensors(folder: Path) -> NoReturn:
    names = sorted(entry.name for entry in folder.iterdir())
    if any(name.lower().endswith(".gguf") for name in names):
        raise UserError(f"{folder} holds GGUF files: make a pack of one with tpiedge import-gguf FILE")
    if any(name.endswith(_PICKLES) for name in names):
        raise UserError(
            f"{folder} holds pickle files only (.bin), which can run code and are never read: "
            "get the model's safetensors version, or convert it where you trust it"
        )
    raise UserError(
        f"{folder} has neither {_SINGLE} nor {_INDEX}: download the model again, all of its files"
    )


def _times(shape: tuple[int, ...]) -> str:
    return sanitised_line(" x ".join(map(str, shape)) or "one number", 120)
