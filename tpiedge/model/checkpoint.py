"""Locates the tensors of a Hugging Face checkpoint in its safetensors files. Pickle files and `auto_map` are never
read, because they can run code. A file is refused unless:

1. the header lies in the file, within MAX_HEADER_BYTES and MAX_TENSORS;
2. no name occurs twice;
3. a tensor's byte count is its shape times its dtype's size;
4. the tensors cover the rest of the file exactly.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NoReturn

from msgspec import UNSET

from tpiedge.errors import UserError
from tpiedge.kernels.panels import GROUP
from tpiedge.model.config import MAX_CONFIG_BYTES, ModelConfig
from tpiedge.model.folder import ConfigFields, has_file, open_file, parse_json, read_bytes, read_json
from tpiedge.model.quantisation import OLD_FILES, WEIGHT, Quantisation, joined_tensors
from tpiedge.model.source import folder_label
from tpiedge.model.spec import EMBEDDING, HEAD, model_spec
from tpiedge.pack.layout import Storage
from tpiedge.pack.quantised import Int4Tensor, MXFP4Tensor
from tpiedge.pack.source import SourceTensor, StoredTensor, TensorColumns, TensorRows, TensorSource
from tpiedge.pack.specs import (
    ROUTER,
    ModelSpec,
    Precision,
    columns_source,
    sources_of,
    stack_source,
    whole_source,
)
from tpiedge.sanitise import quote, sanitised_line
from tpiedge.units import format_bytes

MAX_TENSORS = 80_000  # Qwen3-30B-A3B in GPTQ has 75,000
# Allows 200 bytes a tensor; a 70B model's header has 0.1 MB. Parsing takes up to nine times as much memory: one wide
# character widens the whole text and the value that it is in.
MAX_HEADER_BYTES = 10_000_000
_LENGTH_BYTES = 8

_DTYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "C64": 8,
    "F32": 4, "I32": 4, "U32": 4,
    "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "BOOL": 1, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip


def read_header(file: BinaryIO, path: Path, where: str) -> tuple[dict[str, SourceTensor], str]:
    """Checks a header. Returns (tensors, header's sha256)."""
    size = os.fstat(file.fileno()).st_size
    raw = _header_bytes(file, size, where)
    # Before parsing, which takes memory by the number of values. A matrix has five commas.
    if raw.count(b",") > 5 * MAX_TENSORS:
        _refuse(where, f"the header lists more than {MAX_TENSORS} tensors")
    values = dict(parse_json(raw, f"{where}, header", unique_keys=True))
    metadata = values.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        _refuse(where, "__metadata__ is not an object of texts")
    if len(values) > MAX_TENSORS:
        _refuse(where, f"the header lists {len(values)} tensors, more than {MAX_TENSORS}")
    start = _LENGTH_BYTES + len(raw)
    entries = {name: _entry(name, value, start, path, where) for name, value in values.items()}
    _check_coverage(entries, start, size, where)
    return entries, hashlib.sha256(raw).hexdigest()


def _header_bytes(file: BinaryIO, size: int, where: str) -> bytes:
    if size < _LENGTH_BYTES:
        _refuse(where, f"the file has {size} bytes, too few for a header")
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > size - _LENGTH_BYTES:
        _refuse(where, f"the header claims {length} bytes, more than the file has ({size})")
    if length > MAX_HEADER_BYTES:
        _refuse(where, f"the header has {format_bytes(length)}, more than {format_bytes(MAX_HEADER_BYTES)}")
    raw = file.read(length)
    if len(raw) < length:
        _refuse(where, "the file became shorter while it was read")
    return raw


def _entry(name: str, value: object, start: int, path: Path, where: str) -> SourceTensor:
    here = f"{where}, tensor {quote(name, 100)}"
    if not name or len(name) > 512 or not name.isprintable():
        _refuse(here, "the name is empty, too long or unprintable")
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        _refuse(here, "not an object of dtype, shape and data_offsets")
    dtype, shape = value["dtype"], value["shape"]
    if not isinstance(dtype, str) or dtype not in _DTYPE_BYTES:
        _refuse(here, f"the dtype is {quote(dtype)}; known are {', '.join(_DTYPE_BYTES)}")
    if not _are_sizes(shape) or len(shape) > 16:
        _refuse(here, f"the shape is {quote(shape)}")
    offsets = value["data_offsets"]
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(here, f"data_offsets are {quote(offsets)}")
    first, stop = offsets
    nbytes = math.prod(shape) * _DTYPE_BYTES[dtype]
    if nbytes != stop - first:
        _refuse(here, f"{dtype} {quote(shape)} takes {quote(nbytes)} bytes, data_offsets give {stop - first}")
    return SourceTensor(path, dtype, tuple(shape), start + first, nbytes)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 1 << 62 for number in value)


def _check_coverage(entries: Mapping[str, SourceTensor], start: int, size: int, where: str) -> None:
    position = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        here = f"{where}, tensor {quote(name, 100)}"
        if entry.offset < position:
            _refuse(here, "overlaps the tensor before it")
        if entry.offset > position:
            _refuse(here, f"{entry.offset - position} unused bytes lie before it")
        position += entry.nbytes
        if position > size:
            _refuse(here, f"ends at byte {position}, but the file has {size} (an unfinished download?)")
    if position != size:
        _refuse(where, f"{size - position} bytes lie after the last tensor")


def _refuse(where: str, problem: str) -> NoReturn:
    raise UserError(f"{where}: {problem}; the file is damaged: download it again")


SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MAX_SHARDS = 10_000
_SOURCE_DTYPES = ("F32", "F16", "BF16")
_PREFIX = "model."
# How models with more than text name the parts of their text model.
_TEXT_PREFIXES = (
    ("model.language_model.", _PREFIX), ("language_model.model.", _PREFIX), ("language_model.lm_head.", "lm_head."),
)  # fmt: skip
_HEADLESS = ("embed_tokens.", "layers.", "norm.")
_HEADLESS_ADVICE = (
    "write true for tie_word_embeddings in config.json if it is a model of embeddings, which needs no LM head"
)


@dataclass(frozen=True)
class Checkpoint:
    """`fingerprint` (64 hex digits) changes with config, headers, file sizes and times."""

    folder: Path
    config: ModelConfig
    tensors: Mapping[str, StoredTensor]
    fingerprint: str
    quantisation: Quantisation | None = None

    @staticmethod
    def open(folder: Path) -> "Checkpoint":
        """Reads the config and all headers."""
        config = ModelConfig.open(folder)
        digest = hashlib.sha256(b"tpiedge checkpoint 1\n")
        for name in ("config.json", "generation_config.json"):
            data = read_bytes(folder, name, MAX_CONFIG_BYTES) if has_file(folder, name) else b""
            digest.update(f"{name} {len(data)}\n".encode() + data)
        weights = weight_map(folder)
        shards: dict[str, Mapping[str, SourceTensor]] = {}
        for shard in sorted(set(weights.values())) or [SINGLE]:
            shards[shard], state = _read_shard(folder, shard)
            digest.update(f"{shard} {state}\n".encode())
            if sum(map(len, shards.values())) > MAX_TENSORS:
                raise UserError(f"{folder}: more than {MAX_TENSORS} tensors; no supported model has as many")
        for name, shard in weights.items():
            if name not in shards[shard]:
                raise UserError(
                    f"{folder / shard}: tensor {quote(name, 100)} is missing, though {INDEX} says it is there; "
                    "download the model again"
                )
        listed = {name: shards[shard][name] for name, shard in weights.items()}
        located = _usual_names(listed or shards[SINGLE], tied=config.tie_word_embeddings)
        fields = ConfigFields(str(folder / "config.json"), read_json(folder, "config.json", MAX_CONFIG_BYTES))
        # Old checkpoints describe their quantisation in a file of its own, which is ignored beside plain tensors.
        old = None
        given = next((name for name in OLD_FILES if has_file(folder, name)), None)
        if given and any(name.endswith(WEIGHT) for name in located):
            old = folder / given, read_bytes(folder, given, MAX_CONFIG_BYTES)
            digest.update(f"{given} {len(old[1])}\n".encode() + old[1])
        quantisation = Quantisation.of(fields, old)
        tensors = joined_tensors(located, quantisation) if quantisation else located
        spec = model_spec(config)
        for find in (_of_experts, _parts, _columns):
            tensors |= dict(find(tensors, spec))
        if not any(isinstance(tensor, (Int4Tensor, MXFP4Tensor)) for tensor in tensors.values()):
            quantisation = None
        return Checkpoint(folder, config, MappingProxyType(tensors), digest.hexdigest(), quantisation)

    @property
    def label(self) -> str:
        return folder_label(self.folder)

    def storage(self, precision: Precision | None) -> Storage:
        """Returns a pack's storage. The default is `quantisation.storage`, else bf16 if all tensors are, else f32."""
        if self.quantisation and precision is None:
            return self.quantisation.storage(self.tensors, model_spec(self.config))
        usual = Precision.BF16 if {one.dtype for one in self.tensors.values()} == {"BF16"} else Precision.F32
        return Storage.of(precision or usual, tied=self.config.tie_word_embeddings)

    def check(self, spec: ModelSpec) -> None:
        """Raises UserError for a missing or wrong tensor."""
        for source, shape in spec.source_shapes.items():
            info = self.tensors.get(source)
            if info is None:
                advice = _HEADLESS_ADVICE if source == HEAD else "check that config.json belongs to it"
                lacks = f"tensor {source} is missing from the checkpoint"
                raise UserError(f"{self.folder}: {lacks}; download the model again, or {advice}")
            if info.shape != shape:
                raise UserError(
                    f"{info.files[0]}: tensor {source} has shape {_times(info.shape)}, config.json asks for "
                    f"{_times(shape)}; check that config.json belongs to the checkpoint"
                )
            if info.dtype not in _SOURCE_DTYPES:
                raise UserError(
                    f"{info.files[0]}: tensor {source} is stored as {info.dtype}; supported are "
                    f"{', '.join(_SOURCE_DTYPES)}: give the original, unquantised checkpoint"
                )
        head = self.tensors.get(HEAD)
        if spec.tied and head and not _same_numbers(head, self.tensors[spec.embedding.matrices[0].source]):
            raise UserError(
                f"{self.folder}: config.json ties {HEAD} to the embedding, but the checkpoint has a different "
                "one; write false for tie_word_embeddings in config.json"
            )


def _same_numbers(one: StoredTensor, other: StoredTensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with closing(TensorSource({"one": one, "other": other})) as source:
        step = max(1, (1 << 20) // one.shape[1])
        for first in range(0, one.shape[0], step):
            rows = range(first, min(first + step, one.shape[0]))
            if source.read("one", rows).tobytes() != source.read("other", rows).tobytes():
                return False
    return True


def weight_map(folder: Path) -> Mapping[str, str]:
    """Returns tensor -> file name from the index. Returns {} if the folder has model.safetensors."""
    if has_file(folder, SINGLE):
        return {}
    if not has_file(folder, INDEX):
        if any(entry.name.lower().endswith(".gguf") for entry in folder.iterdir()):
            raise UserError(f"{folder} holds GGUF files: make a pack of one with tpiedge import-gguf FILE")
        raise UserError(
            f"{folder} has neither {SINGLE} nor {INDEX}: pickle files (.bin, .pt) can run code and are never read: "
            "get the model's safetensors version"
        )
    where = folder / INDEX
    index = parse_json(read_bytes(folder, INDEX, 10_000_000), str(where), unique_keys=True)
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
    if (count := len(set(weights.values()))) > _MAX_SHARDS:
        raise UserError(f"{where}: names {count} files, more than {_MAX_SHARDS}")
    return weights


def _read_shard(folder: Path, name: str) -> tuple[Mapping[str, SourceTensor], str]:
    """Returns (tensors, a text that changes with the file)."""
    with open_file(folder, name) as file:
        try:
            stat = os.fstat(file.fileno())
            tensors, digest = read_header(file, Path(file.name), str(folder / name))
            return tensors, f"{stat.st_size} {stat.st_mtime_ns} {digest}"
        except OSError as error:
            raise UserError(f"{file.name} cannot be read: {error.strerror}; check the disk") from None


def _usual_names(tensors: Mapping[str, SourceTensor], *, tied: bool) -> dict[str, SourceTensor]:
    """Adds the prefix that headless models leave out, and takes the text model out of a larger one. If `tied`, a head
    without an embedding becomes the embedding."""
    named = {f"{_PREFIX}{name}" if name.startswith(_HEADLESS) else name: one for name, one in tensors.items()}
    for outer, own in _TEXT_PREFIXES:
        named |= {
            own + name.removeprefix(outer): one for name, one in tensors.items() if name.startswith(outer)
        }
    found = named | {name: one for name, one in tensors.items() if name.startswith(_PREFIX)}
    if tied and EMBEDDING not in found and HEAD in found:
        found[EMBEDDING] = found.pop(HEAD)
    return found


def _parts(tensors: Mapping[str, StoredTensor], spec: ModelSpec) -> Iterator[tuple[str, StoredTensor]]:
    """Yields the matrices of `spec` that are some rows of a tensor. Raises UserError unless these are all its rows."""
    stops: dict[str, int] = {}
    for source in spec.source_shapes:
        name, rows = whole_source(source)
        if rows is not None and name in tensors and len(tensors[name].shape) == 2:
            stops[name] = rows.stop
            yield source, TensorRows(tensors[name], rows.start, (len(rows), tensors[name].shape[1]))
    for name, stop in stops.items():
        if tensors[name].shape[0] != stop:
            raise UserError(
                f"{tensors[name].files[0]}: tensor {name} has shape {_times(tensors[name].shape)}, config.json asks "
                f"for {stop} rows; check that config.json belongs to the checkpoint"
            )


def _of_experts(tensors: Mapping[str, StoredTensor], spec: ModelSpec) -> Iterator[tuple[str, StoredTensor]]:
    """Yields the matrices of each expert, where a tensor has those of all: gate above up, or down."""
    for layer in (one for one in spec.layers if one.experts):
        router = next(one.source for one in layer.vectors if one.name == ROUTER)
        place = router.removesuffix("gate.weight")
        for matrix, count in layer.counted_matrices:
            if "{}" not in matrix.source or sources_of(matrix.source, 1)[0] in tensors:
                continue
            rows, cols = matrix.source_shape
            whole, _ = whole_source(matrix.source)
            if item := stack_source(whole):
                own = tensors.get(item.tensor)
                if isinstance(own, SourceTensor) and own.shape[:1] == (count,) and len(own.shape) == 3:
                    yield from ((one, _item(own, at)) for at, one in enumerate(sources_of(whole, count)))
                continue
            above = 1 if matrix.transposed else 2
            stack = tensors.get(f"{place}experts.{'down' if matrix.transposed else 'gate_up'}_proj")
            if isinstance(stack, SourceTensor) and stack.shape == (count, above * rows, cols):
                nbytes = stack.nbytes // (count * above)
                first = stack.offset + (nbytes if matrix.name == "up" else 0)
                for expert, source in enumerate(sources_of(matrix.source, count)):
                    at = first + above * expert * nbytes
                    yield source, SourceTensor(stack.file, stack.dtype, (rows, cols), at, nbytes)


def _columns(tensors: Mapping[str, StoredTensor], spec: ModelSpec) -> Iterator[tuple[str, StoredTensor]]:
    """Yields the matrices and vectors of `spec` that are columns of a tensor. In MXFP4, these are rows of two tensors.
    Raises UserError."""
    for layer in spec.layers:
        for source, shape in layer.source_shapes.items():
            found = columns_source(source)
            if found is None or layer.experts is UNSET:
                continue
            name, item, first, step = found
            whole = found.shape_of_all(shape, layer.experts.count)
            if (stack := _shaped(tensors, name, whole)) is not None:
                own = stack if item is None else _item(stack, item)
                yield source, TensorColumns(own, first, step, turned=item is not None)
            elif item is not None:
                count, inputs, outputs = whole
                groups = count, outputs, inputs // GROUP
                nibbles = _shaped(tensors, f"{name}_blocks", (*groups, GROUP // 2), ("U8",))
                exponents = _shaped(tensors, f"{name}_scales", groups, ("U8",))
                if nibbles and exponents:
                    yield source, MXFP4Tensor(_item(nibbles, item), _item(exponents, item), first, step)


def _shaped(
    tensors: Mapping[str, StoredTensor],
    name: str,
    shape: tuple[int, ...],
    dtypes: tuple[str, ...] = _SOURCE_DTYPES,
) -> SourceTensor | None:
    """Returns a tensor if it is there. Raises UserError if it has another shape or dtype."""
    found = tensors.get(name)
    if not isinstance(found, SourceTensor):
        return None
    if found.shape != shape or found.dtype not in dtypes:
        raise UserError(
            f"{found.file}: tensor {name} is {found.dtype} of the shape {_times(found.shape)}, not "
            f"{' or '.join(dtypes)} of {_times(shape)}; check that config.json belongs to the checkpoint"
        )
    return found


def _item(stack: SourceTensor, number: int) -> SourceTensor:
    """Returns one of the tensors in a stack, as a matrix."""
    count, rows, *cols = stack.shape
    nbytes = stack.nbytes // count
    return SourceTensor(
        stack.file, stack.dtype, (rows, math.prod(cols)), stack.offset + number * nbytes, nbytes
    )


def _times(shape: tuple[int, ...]) -> str:
    return sanitised_line(" x ".join(map(str, shape)) or "one number", 120)
