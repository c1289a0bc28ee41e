"""Reads a GGUF file's config, places of tensors and text files, and chooses its storage."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from tpiedge.errors import UserError
from tpiedge.model.config import ModelConfig
from tpiedge.model.families import FAMILIES
from tpiedge.model.families.family import Gguf
from tpiedge.model.gguf.config import (
    ARCHITECTURES,
    FREQUENCIES,
    LONGROPE,
    architecture,
    config_files,
    huggingface_config,
)
from tpiedge.model.gguf.file import GgufHeader, read_gguf_header
from tpiedge.model.gguf.names import stem_of
from tpiedge.model.gguf.tokenizer import text_files
from tpiedge.model.spec import EMBEDDING, HEAD, model_spec, unused_keys
from tpiedge.pack.dtypes import bf16_from_f32, f32_from_bf16
from tpiedge.pack.layout import Storage
from tpiedge.pack.quantised import FORMAT_OF, BlockTensor, holds_exactly
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import CHOICES, MatrixSpec, ModelSpec, Precision, sources_of, whole_source

_NUMBERS = {"BF16", "F16", "F32"}
_BIASED = ("attn_q", "attn_output", "ffn_down")


@dataclass(frozen=True)
class GgufModel:
    """`fingerprint` changes with the file's header, size or modification time."""

    path: Path
    config: ModelConfig
    tensors: Mapping[str, BlockTensor]
    fingerprint: str
    header: GgufHeader = field(repr=False)

    @staticmethod
    def open(path: Path) -> "GgufModel":
        """Reads the file's header."""
        header = read_gguf_header(path)
        qkv, o, mlp = (f"blk.0.{part}.bias" in header.tensors for part in _BIASED)
        config = ModelConfig.from_huggingface(huggingface_config(header), f"{path}, as config.json")
        layers = (
            replace(
                one,
                attention=replace(one.attention, qkv_bias=qkv, o_bias=o),
                ffn=one.ffn and replace(one.ffn, bias=mlp),
            )
            for one in config.layers
        )
        config = replace(config, layers=tuple(layers))
        return GgufModel(path, config, gguf_tensors(header, config), header.digest, header)

    @property
    def label(self) -> str:
        return self.path.name

    @property
    def stem(self) -> str:
        return stem_of(self.path.name)

    def text(self) -> tuple[dict[str, bytes], str | None]:
        """Returns (file name -> content, why the tokenizer is missing or None). Takes 2 s for 262,144 tokens."""
        files, notice = text_files(self.header, self.config.vocab_size)
        return config_files(self.header) | files, notice

    def storage(self, precision: Precision | None) -> Storage:
        """Returns a pack's storage. Without `precision`, quantised matrices keep their types if a unit of panels can,
        and others beside them become q8. Raises UserError, ReadFault."""
        storage, vectors = self._matrix_storage(precision), []
        for key, blob in model_spec(self.config).blobs.items():
            if storage.of_blob(key).of_vectors is Precision.BF16:
                vectors += [vector.source for vector in blob.vectors]
        with closing(TensorSource(self.tensors)) as source:
            return replace(storage, vectors_f32=not all(_survives_bf16(source, name) for name in vectors))

    def _matrix_storage(self, precision: Precision | None) -> Storage:
        spec, tied = model_spec(self.config), self.config.tie_word_embeddings
        layers = [matrix for layer in spec.layers for matrix, _ in layer.counted_matrices]
        kinds = {kind for matrix in layers for kind in self._kinds(matrix.source)}
        if precision is None and kinds <= _NUMBERS:
            precision = Precision.BF16 if kinds == {"BF16"} else Precision.F32
        if precision is not None and not precision.quantised:
            return Storage.of(precision, tied=tied)
        known = tuple(Precision) if precision is None else CHOICES
        embedding, head = self._own(EMBEDDING, known), None if tied else self._own(HEAD, known)
        if precision is not None:
            return Storage.of(precision, tied=tied, embedding=embedding, head=head)
        own = {matrix.source: self._own(matrix.source, known, matrix) for matrix in layers}
        quantised = {source: one if one and one.quantised else Precision.Q8 for source, one in own.items()}
        storage = Storage.keeping(spec, quantised, embedding, head)
        for table in spec.embedding.matrices[1:2]:  # that of inputs per layer
            one = self._own(table.source, known)
            if one is not storage.embedding:
                stored = one if one and one.quantised else Precision.Q8
                storage = replace(storage, kept={**storage.kept, table.source: stored})
        return storage

    def _kinds(self, source: str) -> set[str]:
        """Returns the types of a matrix, or of that of all experts."""
        count = next((one.experts.count for one in self.config.layers if one.experts), 1)
        return {self.tensors[one].kind for one in sources_of(source, count)}

    def _own(
        self, source: str, known: Sequence[Precision], matrix: MatrixSpec | None = None
    ) -> Precision | None:
        """Returns the precision of `known` that holds a matrix exactly, or else q8. Returns None for F16 and F32, which
        take the default beside quantised layers. `matrix`: its units, if some are of inputs."""
        kind, *others = self._kinds(source)
        if others:  # experts of unlike types
            return Precision.Q8
        if kind in _NUMBERS:
            return Precision.BF16 if kind == "BF16" else None
        exact = (one for one in known if one.quantised and FORMAT_OF.get(kind) is one.format)
        found = next(exact, Precision.Q8)
        return found if holds_exactly(found.format, kind, matrix) else Precision.Q8


def _survives_bf16(source: TensorSource, name: str) -> bool:
    if source.dtype(name) == "BF16":
        return True
    values = source.read(name).astype(np.float32)
    return np.array_equal(f32_from_bf16(bf16_from_f32(values)).view(np.uint32), values.view(np.uint32))


_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    **{
        name.removesuffix(".weight"): stored
        for family in FAMILIES.values()
        if family.experts
        for name, stored in zip(
            family.experts, ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), strict=True
        )
    },
}
#: Parts of a tensor of older files -> of newer ones.
_FUSED = {"qkv": "attn_qkv", "gate_up": "ffn_gate_up_exps"}
# Queries and keys that are rotated in pairs of neighbouring columns; in checkpoints in the halves of a head.
_PAIRED = re.compile(r"blk\.\d+\.attn_[qk]\.\w+")


def gguf_name(source: str, own: Mapping[str, str] | None = None) -> str:
    """Translates 'model.layers.3.mlp.up_proj.weight' to 'blk.3.ffn_up.weight'. `own`: an architecture's own names of
    parts, or of whole tensors. Raises KeyError."""
    names = _NAMES | dict(own or {})
    if (tensor := source.removesuffix(".weight")) in names:
        return f"{names[tensor]}.weight"
    layer, _, inner = source.removeprefix("model.layers.").partition(".")
    if inner in names:
        stored = names[inner]
        return f"blk.{layer}.{stored}" if "." in stored else f"blk.{layer}.{stored}.weight"
    name, _, kind = inner.rpartition(".")
    return f"blk.{layer}.{names[name]}.{kind}"


def gguf_tensors(header: GgufHeader, config: ModelConfig) -> dict[str, BlockTensor]:
    """Returns the tensors of the config's spec by their sources."""
    files, _ = ARCHITECTURES[architecture(header)]
    found: dict[str, BlockTensor] = {}
    wanted: dict[str, tuple[int, ...]] = {}
    spec = model_spec(config)
    parts = {matrix.source: matrix.name for layer in spec.layers for matrix, _ in layer.counted_matrices}
    for source, name, shape in _named(spec, header, files):
        rows = whole_source(source)[1]
        for fused, whole_name in _FUSED.items():
            if name not in header.tensors and f".{whole_name}." in name:
                name, rows = name.replace(fused, parts[source]), None
        tensor = header.tensors.get(name)
        if tensor is None:
            raise UserError(f"{header.path}: the tensor {name} is missing; download the file again")
        wanted[name] = shape
        if rows is not None:
            wanted[name] = (*shape[:-2], rows.stop, shape[-1])
            place = tensor.offset + rows.start * tensor.row_nbytes
            tensor = msgspec.structs.replace(tensor, shape=shape, offset=place)
        if files.paired and _PAIRED.fullmatch(name):
            tensor = msgspec.structs.replace(tensor, paired=config.head_dim)
        if config.norm_offset and source.endswith("norm.weight"):
            tensor = tensor.shifted(config.norm_offset)
        if "{}" not in source:
            found[source] = tensor
            continue
        (count, *own), each = shape, header.tensors[name].shape[-2:][0]
        for expert, one in enumerate(sources_of(source, count)):
            place = tensor.offset + expert * each * tensor.row_nbytes
            found[one] = msgspec.structs.replace(tensor, shape=tuple(own), offset=place)
    for name, shape in wanted.items():
        if header.tensors[name].shape != shape:
            shapes = f"the shape {header.tensors[name].shape}, the keys ask for {shape}"
            raise UserError(f"{header.path}: the tensor {name} has {shapes}")
    known = {*wanted, FREQUENCIES, *LONGROPE, *(gguf_name(one, files.tensors) for one in unused_keys(config))}
    left = [name for name in header.tensors if name not in known]
    if left:
        raise UserError(
            f"{header.path}: the tensor {left[0]} has no place in a model of {config.model_type}: without it this "
            "would be another model; get one that is supported, or the original checkpoint"
        )
    return found


def _named(spec: ModelSpec, header: GgufHeader, files: Gguf) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yields the source, the file's name and the shape of each tensor. Older files have a tensor for each expert."""
    for source, shape in _shapes(spec).items():
        name = gguf_name(whole_source(source)[0], files.tensors)
        if "{}" not in source or name.replace("_exps.", ".0.") not in header.tensors:
            yield source, name, shape
            continue
        for expert, one in enumerate(sources_of(source, shape[0])):
            yield one, name.replace("_exps.", f".{expert}."), shape[1:]


def _shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the spec's tensors. That of all experts' matrices is one."""
    found: dict[str, tuple[int, ...]] = {}
    for blob in spec.blobs.values():
        for matrix, count in blob.counted_matrices:
            is_stack = blob.experts and matrix in blob.experts.matrices
            found[matrix.source] = (count, *matrix.source_shape) if is_stack else matrix.source_shape
        found |= {vector.source: blob.shape_of(vector) for vector in blob.vectors}
    return found
