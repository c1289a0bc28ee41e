"""A model in a GGUF file: config, places of its tensors, text files, and the best storage for its pack."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import GROUP
from tpiedge.model.checkpoint import sources_of
from tpiedge.model.config import ModelConfig
from tpiedge.model.gguf.config import FREQUENCIES, generation_config, huggingface_config, pooling
from tpiedge.model.gguf.file import GgufHeader, read_gguf_header
from tpiedge.model.gguf.tokenizer import TextFiles, text_files
from tpiedge.model.spec import EMBEDDING, HEAD, model_spec
from tpiedge.pack.dtypes import bf16_from_f32, f32_from_bf16
from tpiedge.pack.layout import Storage
from tpiedge.pack.quantised import EXACT_BITS, BlockTensor
from tpiedge.pack.source import TensorSource
from tpiedge.pack.specs import BlobSpec, MatrixSpec, Precision
from tpiedge.units import counted

_FLOATS = {"BF16": Precision.BF16, "F16": Precision.F32, "F32": Precision.F32}
_EXACT = {4: Precision.Q4, 8: Precision.Q8}
_BIASED = ("attn_q", "attn_output", "ffn_down")


@dataclass(frozen=True)
class GgufModel:
    """`huggingface`: its config.json; `fingerprint` changes with the header, size or modification time."""

    path: Path
    config: ModelConfig
    huggingface: Mapping[str, object]
    generation: Mapping[str, object]
    tensors: Mapping[str, BlockTensor]
    fingerprint: str
    header: GgufHeader = field(repr=False)

    @staticmethod
    def open(path: Path) -> "GgufModel":
        """Raises UserError."""
        header = read_gguf_header(path)
        values = huggingface_config(header)
        qkv, o, mlp = (f"blk.0.{part}.bias" in header.tensors for part in _BIASED)
        config = ModelConfig.from_huggingface(values, f"{path}, as config.json")
        config = replace(config, qkv_bias=qkv, o_bias=o, mlp_bias=mlp)
        tensors = gguf_tensors(header, config)
        return GgufModel(path, config, values, generation_config(header), tensors, header.digest, header)

    @property
    def label(self) -> str:
        return self.path.name

    @property
    def pooling(self) -> str | None:
        return pooling(self.header)

    @cached_property
    def text(self) -> TextFiles:
        """The tokenizer and the template; takes half a second for a large vocabulary."""
        return text_files(self.header, self.config.vocab_size)

    def storage(self, precision: Precision | None) -> Storage:
        """Returns the storage of a pack with layers in `precision`; by default what holds most layers without rounding.
        Norms and biases that bf16 would round are in f32. Raises UserError and ReadFault."""
        storage = self._matrix_storage(precision)
        return replace(storage, vectors_f32=True) if self._rounds_vectors(storage) else storage

    def _matrix_storage(self, precision: Precision | None) -> Storage:
        spec, tied = model_spec(self.config), self.config.tie_word_embeddings
        tensors = [self.tensors[matrix.source] for layer in spec.layers for matrix in layer.matrices]
        weights: Counter[Precision] = Counter()
        for tensor in tensors:
            weights[_natural(tensor.kind)] += tensor.shape[0] * tensor.shape[1]
        kinds = {tensor.kind for tensor in tensors}
        usual = weights.most_common(1)[0][0]
        if not usual.quantised and kinds != {"BF16"}:
            usual = Precision.F32 if kinds <= _FLOATS.keys() else Precision.Q8
        layers = precision or usual
        if not layers.quantised:
            return Storage.of(layers, tied=tied)
        others = (self.tensors.get(source) for source in (EMBEDDING, HEAD))
        # F16 and F32 take the default beside quantised layers.
        embedding, head = (
            _natural(one.kind) if one and one.kind not in ("F16", "F32") else None for one in others
        )
        return Storage.of(layers, tied=tied, embedding=embedding, head=head)

    def losses(self, storage: Storage) -> Iterator[str]:
        """Describes the matrices that a pack of this storage rounds, a line for each kind."""
        found: Counter[tuple[str, str]] = Counter()
        for key, blob in self._blobs():
            precision = storage.of_blob(key)
            for spec in blob.matrices:
                kind = self.tensors[spec.source].kind
                found[kind, precision.value] += not _is_exact(spec, kind, precision)
        for (kind, rounded), count in sorted(found.items()):
            if count:
                matrices = counted(count, "matrix", "matrices")
                yield f"{matrices} of {kind} {'are' if count > 1 else 'is'} rounded to {rounded}"

    def _rounds_vectors(self, storage: Storage) -> bool:
        """Whether a norm or a bias has a number that bf16 has not, where the pack would hold it in bf16."""
        with closing(TensorSource(self.tensors)) as source:
            return any(
                not _survives_bf16(source, vector.source)
                for key, blob in self._blobs()
                if storage.of_blob(key).of_vectors is Precision.BF16
                for vector in blob.vectors
            )

    def _blobs(self) -> Iterator[tuple[int | str, BlobSpec]]:
        spec = model_spec(self.config)
        yield from (("embedding", spec.embedding), ("head", spec.head))
        for layer in spec.layers:
            yield 0, layer


def _natural(kind: str) -> Precision:
    """Returns the precision that holds a type without rounding, or q8."""
    return _FLOATS.get(kind) or _EXACT[EXACT_BITS.get(kind, 8)]


def _is_exact(spec: MatrixSpec, kind: str, precision: Precision) -> bool:
    if precision is Precision.F32 or (precision is Precision.BF16 and kind == "BF16"):
        return True
    one_unit, whole_groups = spec.rows_per_unit >= spec.rows, spec.rows_per_unit % GROUP == 0
    fits = not spec.transposed or one_unit or whole_groups
    return precision.quantised and fits and EXACT_BITS.get(kind, 9) <= precision.bits


def _survives_bf16(source: TensorSource, name: str) -> bool:
    if source.dtype(name) == "BF16":
        return True
    values = source.read(name).astype(np.float32)
    return np.array_equal(f32_from_bf16(bf16_from_f32(values)).view(np.uint32), values.view(np.uint32))


_OUTER = {
    EMBEDDING: "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    HEAD: "output.weight",
}
_INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Queries and keys in the files of "llama" rotate neighbouring numbers, in checkpoints the halves of a head.
_PAIRED = re.compile(r"blk\.\d+\.attn_[qk]\.\w+")


def gguf_name(source: str) -> str:
    """'model.layers.3.mlp.up_proj.weight' -> 'blk.3.ffn_up.weight'. Raises KeyError for an unknown name."""
    if source in _OUTER:
        return _OUTER[source]
    layer, _, inner = source.removeprefix("model.layers.").partition(".")
    name, _, kind = inner.rpartition(".")
    return f"blk.{layer}.{_INNER[name]}.{kind}"


def gguf_tensors(header: GgufHeader, config: ModelConfig) -> dict[str, BlockTensor]:
    """Returns checkpoint's name -> tensor. Raises UserError for a missing or unknown tensor or a wrong shape."""
    found: dict[str, BlockTensor] = {}
    known = {FREQUENCIES}
    for source, shape in sources_of(model_spec(config)):
        name = gguf_name(source)
        tensor = header.tensors.get(name)
        if tensor is None:
            raise UserError(f"{header.path}: the tensor {name} is missing; download the file again")
        if tensor.shape != shape:
            shapes = f"the shape {tensor.shape}, the keys ask for {shape}"
            raise UserError(f"{header.path}: the tensor {name} has {shapes}")
        if config.model_type == "llama" and _PAIRED.fullmatch(name):
            tensor = msgspec.structs.replace(tensor, paired=config.head_dim)
        found[source] = tensor
        known.add(name)
    left = [name for name in header.tensors if name not in known]
    if left:
        raise UserError(
            f"{header.path}: the tensor {left[0]} has no place in a model of {config.model_type}: without it this "
            "would be another model; get one that is supported, or the original checkpoint"
        )
    return found
