"""A model in a GGUF file: config, places of its tensors, text files, and the best storage for its pack."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from tpiedge.errors import UserError
from tpiedge.kernels.panels import GROUP
from tpiedge.model.checkpoint import sources_of
from tpiedge.model.config import ModelConfig
from tpiedge.model.gguf.config import generation_config, gguf_config, huggingface_config, pooling
from tpiedge.model.gguf.file import GgufHeader, read_gguf_header
from tpiedge.model.gguf.tokenizer import TextFiles, text_files
from tpiedge.model.spec import model_spec
from tpiedge.pack.dtypes import bf16_from_f32, f32_from_bf16
from tpiedge.pack.layout import Storage
from tpiedge.pack.quantised import EXACT_BITS, BlockTensor
from tpiedge.pack.source import CheckpointSource, TensorSource
from tpiedge.pack.specs import BlobSpec, MatrixSpec, Precision
from tpiedge.units import counted

_FLOATS = {"BF16": Precision.BF16, "F16": Precision.F32, "F32": Precision.F32}
_EXACT = {4: Precision.Q4, 8: Precision.Q8}


@dataclass(frozen=True)
class GgufModel:
    """`huggingface` is the model's config.json, `generation` its generation_config.json. `fingerprint` changes with the
    header, size or modification time of the file."""

    path: Path
    config: ModelConfig
    huggingface: Mapping[str, object]
    generation: Mapping[str, object]
    tensors: Mapping[str, BlockTensor]
    fingerprint: str
    header: GgufHeader = field(repr=False)

    @staticmethod
    def open(path: Path) -> "GgufModel":
        """Reads and checks the header. Raises UserError."""
        header = read_gguf_header(path)
        values = huggingface_config(header)
        config = gguf_config(header, values)
        tensors = gguf_tensors(header, config)
        return GgufModel(path, config, values, generation_config(header), tensors, header.digest, header)

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
        weights: Counter[Precision] = Counter()
        for _, tensor in self._matrices("layer"):
            weights[_natural(tensor.kind)] += tensor.shape[0] * tensor.shape[1]
        kinds = {tensor.kind for _, tensor in self._matrices("layer")}
        usual = weights.most_common(1)[0][0]
        if not usual.quantised and kinds != {"BF16"}:
            usual = Precision.F32 if kinds <= _FLOATS.keys() else Precision.Q8
        layers = precision or usual
        tied = self.config.tie_word_embeddings
        if not layers.quantised:
            return Storage.of(layers, tied=tied)
        ((_, embedding),) = self._matrices("embedding")
        heads = [tensor for _, tensor in self._matrices("head")]
        return Storage.of(
            layers,
            tied=tied,
            embedding=_quantised(embedding.kind),
            head=_quantised(heads[0].kind) if heads else None,
        )

    def losses(self, storage: Storage) -> Iterator[str]:
        """Describes the matrices that a pack of this storage rounds, a line for each kind."""
        found: Counter[tuple[str, Precision]] = Counter()
        for blob in ("layer", "embedding", "head"):
            for spec, tensor in self._matrices(blob):
                precision = storage.of_blob(0 if blob == "layer" else blob)
                if not _is_exact(spec, tensor.kind, precision):
                    found[tensor.kind, precision] += 1
        for (kind, precision), count in sorted(
            found.items(), key=lambda item: (item[0][0], item[0][1].value)
        ):
            matrices = counted(count, "matrix", "matrices")
            yield f"{matrices} of {kind} {'are' if count > 1 else 'is'} rounded to {precision.value}"

    def _rounds_vectors(self, storage: Storage) -> bool:
        """Whether a norm or a bias has a number that bf16 has not, where the pack would hold it in bf16."""
        with closing(CheckpointSource(self.tensors)) as source:
            return any(
                not _survives_bf16(source, vector.source)
                for blob in ("layer", "head")
                if storage.of_blob(0 if blob == "layer" else blob).of_vectors is Precision.BF16
                for one in self._blobs(blob)
                for vector in one.vectors
            )

    def _blobs(self, blob: str) -> tuple[BlobSpec, ...]:
        spec = model_spec(self.config)
        return {"layer": spec.layers, "embedding": (spec.embedding,), "head": (spec.head,)}[blob]

    def _matrices(self, blob: str) -> Iterator[tuple[MatrixSpec, BlockTensor]]:
        return ((matrix, self.tensors[matrix.source]) for one in self._blobs(blob) for matrix in one.matrices)


def _natural(kind: str) -> Precision:
    """Returns the precision that holds a type without rounding, or q8."""
    return _FLOATS.get(kind) or _EXACT[EXACT_BITS.get(kind, 8)]


def _quantised(kind: str) -> Precision | None:
    """Returns the same beside quantised layers; None for the default."""
    return None if kind in ("F16", "F32") else _natural(kind)


def _is_exact(spec: MatrixSpec, kind: str, precision: Precision) -> bool:
    if precision is Precision.F32 or (precision is Precision.BF16 and kind == "BF16"):
        return True
    one_unit, whole_groups = spec.rows_per_unit >= spec.rows, spec.rows_per_unit % GROUP == 0
    fits = not spec.transposed or one_unit or whole_groups
    return precision.quantised and fits and EXACT_BITS.get(kind, 9) <= precision.bits


def _survives_bf16(source: TensorSource, name: str) -> bool:
    if source.dtype(name) == "BF16":
        return True
    values = source.read_vector(name).astype(np.float32)
    return np.array_equal(f32_from_bf16(bf16_from_f32(values)).view(np.uint32), values.view(np.uint32))


_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
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
_OF_CONFIG = "rope_freqs.weight"  # see gguf/config.py
# Its files rotate neighbouring numbers, checkpoints the halves of a head.
_PAIRED_ARCHITECTURE = "llama"
_PAIRED = ("self_attn.q_proj", "self_attn.k_proj")


def gguf_name(source: str) -> str:
    """'model.layers.3.mlp.up_proj.weight' -> 'blk.3.ffn_up.weight'. Raises KeyError for an unknown name."""
    if source in _OUTER:
        return _OUTER[source]
    layer, inner, kind = _parts(source)
    return f"blk.{layer}.{_INNER[inner]}.{kind}"


def gguf_tensors(header: GgufHeader, config: ModelConfig) -> dict[str, BlockTensor]:
    """Returns checkpoint's name -> tensor. Raises UserError for a tensor that is missing, left over or of a wrong
    shape."""
    sources = sources_of(model_spec(config))
    found = {source: _tensor(header, config, source, shape) for source, shape in sources}
    known = {gguf_name(source) for source in found}
    for name in header.tensors:
        if name not in known and name != _OF_CONFIG:
            raise UserError(
                f"{header.path}: the tensor {name} has no place in a model of {config.model_type}: without "
                "it this would be another model; get one that is supported, or the original checkpoint"
            )
    return found


def _tensor(header: GgufHeader, config: ModelConfig, source: str, shape: tuple[int, ...]) -> BlockTensor:
    name = gguf_name(source)
    info = header.tensors.get(name)
    if info is None:
        raise UserError(f"{header.path}: the tensor {name} is missing; download the file again")
    if info.shape != shape:
        raise UserError(
            f"{header.path}: the tensor {name} has the shape {info.shape}, the keys ask for {shape}"
        )
    paired = (
        config.model_type == _PAIRED_ARCHITECTURE and source not in _OUTER and _parts(source)[1] in _PAIRED
    )
    return BlockTensor(info.kind, shape, header.path, info.offset, config.head_dim if paired else 0)


def _parts(source: str) -> tuple[str, str, str]:
    """Returns (layer, name within it, "weight" or "bias")."""
    layer, _, inner = source.removeprefix("model.layers.").partition(".")
    name, _, kind = inner.rpartition(".")
    return layer, name, kind
