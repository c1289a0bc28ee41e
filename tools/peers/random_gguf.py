"""A GGUF file of random weights in the shape of a real model, quantised as llama.cpp reads them.

Q4_0 and Q8_0: blocks of 32 weights of a row, an f16 scale and then the codes, two of four bits in a byte. Q4_K and
Q6_K: blocks of 256 weights with scales of scales.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpiedge.errors import UserError
from tpiedge.model.config import ModelConfig
from tpiedge.model.families import FAMILIES
from tpiedge.model.gguf.config import FREQUENCIES, LONGROPE
from tpiedge.model.gguf.model import gguf_name
from tpiedge.model.presets import preset
from tpiedge.model.spec import model_spec
from tpiedge.pack.specs import whole_source

from .gguf import GgufTensor, GgufValue, header, metadata

_ALIGN = 32
_PIECE_BLOCKS = 1 << 18
_ASCII = 128
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


@dataclass(frozen=True)
class BlockFormat:
    """`kind` is the format's number of a tensor. A block has `weights` and the fields of `block`; `scales` have their
    values, all other bytes are random."""

    kind: int
    weights: int
    block: np.dtype[np.void]
    scales: Mapping[str, float]

    @property
    def nbytes(self) -> int:
        return self.block.itemsize


def _format(
    kind: int, weights: int, scales: Mapping[str, float], *fields: tuple[str, str, int]
) -> BlockFormat:
    return BlockFormat(kind, weights, np.dtype(list(fields)), scales)


_D = ("d", "<f2", 1)
Q4_0 = _format(2, 32, {"d": 0.004}, _D, ("codes", "u1", 16))
Q8_0 = _format(8, 32, {"d": 0.0003}, _D, ("codes", "u1", 32))
Q4_K = _format(12, 256, {"d": 1e-4, "dmin": 8e-4}, _D, ("dmin", "<f2", 1), ("scales_codes", "u1", 12 + 128))
Q6_K = _format(14, 256, {"d": 1.5e-5}, ("codes_scales", "u1", 128 + 64 + 16), _D)
FILE_TYPES = {"q4": 2, "q8": 7, "q4_k_m": 15}
"""Name of a precision -> the format's number of a file."""


@dataclass(frozen=True)
class RandomTensor(GgufTensor):
    """`blocks` None: as in a file of bf16."""

    blocks: BlockFormat | None = None

    @property
    def kind(self) -> int:
        return self.blocks.kind if self.blocks else super().kind

    @property
    def nbytes(self) -> int:
        if self.blocks is None:
            return super().nbytes
        return int(np.prod(self.shape)) // self.blocks.weights * self.blocks.nbytes


def write_random_gguf(name: str, precision: str, out: Path, seed: int = 0, *, words: bool = False) -> int:
    """Writes the preset `name`. Returns the tensors' bytes. Files of q4 and q8 keep the embedding in bf16 and the head
    in Q8_0. `words` adds a tokenizer of made-up words, without which llama.cpp's server does not answer."""
    config = ModelConfig.from_huggingface(preset(name), f"preset {name}")
    tensors = random_tensors(config, precision)
    values = metadata(config)
    if precision in FILE_TYPES:
        values["general.file_type"] = FILE_TYPES[precision]
    if words:
        values |= made_up_words(config.vocab_size)
    generator = np.random.Generator(np.random.PCG64(seed))
    partial = out.with_name(f".{out.name}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(header(values, tensors))
            for tensor in tensors:
                for piece in _pieces(tensor, generator):
                    file.write(piece)
                file.write(bytes(-tensor.nbytes % _ALIGN))
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return sum(tensor.nbytes for tensor in tensors)


def made_up_words(count: int) -> dict[str, GgufValue]:
    """A SentencePiece vocabulary: three signs, the bytes of ASCII, then words, each with a space before it."""
    signs = ["<unk>", "<s>", "</s>"]
    ascii_bytes = [f"<0x{byte:02X}>" for byte in range(_ASCII)]
    words = [f"\u2581w{number}" for number in range(count - len(signs) - len(ascii_bytes))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL] + [_BYTE] * len(ascii_bytes) + [_NORMAL] * len(words)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*signs, *ascii_bytes, *words],
        "tokenizer.ggml.scores": [0.0] * count,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def random_tensors(config: ModelConfig, precision: str) -> list[RandomTensor]:
    """Returns every tensor of the model, in the order of the file."""
    gguf, spec = FAMILIES[config.model_type].gguf, model_spec(config)
    shapes: dict[str, tuple[int, ...]] = {}
    for blob in (spec.embedding, *spec.layers, spec.head):
        for matrix, count in blob.counted_matrices:
            source, rows = whole_source(matrix.source)
            stack = (count,) if "{}" in source else ()
            shapes[source] = (*stack, *(matrix.source_shape if rows is None else (rows.stop, matrix.cols)))
        shapes |= {vector.source: blob.shape_of(vector) for vector in blob.vectors}
    found = []
    for source, shape in shapes.items():
        name = gguf_name(source, None if gguf is None else gguf.tensors)
        blocks = _blocks(name, precision, config) if len(shape) > 1 else None
        if blocks is not None and shape[-1] % blocks.weights:
            raise UserError(
                f"{name} has rows of {shape[-1]} numbers, no blocks of {precision}: take q4 or q8"
            )
        found.append(RandomTensor(name, source, shape, blocks))
    rope = config.rope
    if rope is not None and rope.short_factor:
        found += [RandomTensor(name, name, (len(rope.short_factor),)) for name in LONGROPE]
    if rope is not None and rope.kind == "proportional":
        found.append(RandomTensor(FREQUENCIES, FREQUENCIES, (config.head_dim // 2,)))
    return found


def _blocks(name: str, precision: str, config: ModelConfig) -> BlockFormat | None:
    """Returns the format of a matrix; None for bf16, and for routers and biases. q4_k_m follows llama.cpp's
    `llama_tensor_get_type`."""
    if ".ffn_gate_inp." in name or name.endswith(".bias"):
        return None
    is_embedding = name.startswith("token_embd.")
    is_head = name.startswith(("output.", "per_layer_")) or (is_embedding and config.tie_word_embeddings)
    if precision == "q4_k_m":
        favoured = "attn_v." in name or "ffn_down" in name
        return (
            Q6_K if is_head or (favoured and more_bits(int(name.split(".")[1]), config.num_layers)) else Q4_K
        )
    if precision == "bf16" or (is_embedding and not is_head):
        return None
    return Q8_0 if is_head or precision == "q8" else Q4_0


def more_bits(layer: int, layers: int) -> bool:
    """Returns True for the first and the last eighth of the layers, and for every third between."""
    first = layers // 8
    return layer < first or layer >= 7 * layers // 8 or (layer - first) % 3 == 2


def _pieces(tensor: RandomTensor, generator: np.random.Generator) -> Iterator[bytes]:
    if tensor.blocks is None:
        yield from _plain(tensor, generator)
        return
    left = tensor.nbytes // tensor.blocks.nbytes
    while left:
        count = min(left, _PIECE_BLOCKS)
        rows = np.frombuffer(bytearray(generator.bytes(count * tensor.blocks.nbytes)), tensor.blocks.block)
        for name, value in tensor.blocks.scales.items():
            rows[name] = value
        yield rows.tobytes()
        left -= count


def _plain(tensor: RandomTensor, generator: np.random.Generator) -> Iterator[bytes]:
    """Vectors are ones; matrices, also routers, are near zero."""
    count = int(np.prod(tensor.shape))
    if tensor.is_vector:
        yield np.ones(count, "<f4").tobytes()
        return
    for first in range(0, count, _PIECE_BLOCKS):
        values = generator.standard_normal(min(_PIECE_BLOCKS, count - first), dtype=np.float32) * np.float32(
            0.02
        )
        yield (values if tensor.is_f32 else (values.view("<u4") >> 16).astype("<u2")).tobytes()
