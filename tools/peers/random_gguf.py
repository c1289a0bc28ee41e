"""A GGUF file of random weights in the shape of a real model, quantised as llama.cpp reads them.

Q4_0 and Q8_0: blocks of 32 weights of a row, an f16 scale and then the codes, two of four bits in a byte.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tpiedge.model.config import ModelConfig
from tpiedge.model.gguf.model import gguf_name
from tpiedge.model.presets import preset
from tpiedge.model.spec import model_spec

from .gguf import GgufTensor, GgufValue, header, metadata

_ALIGN = 32
_BLOCK = 32
_PIECE_BLOCKS = 1 << 18
_ASCII = 128
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


@dataclass(frozen=True)
class BlockFormat:
    """`kind`: of a tensor, `file_type`: of a file, both in the format's numbers. `code_bytes`: of a block's codes."""

    kind: int
    file_type: int
    code_bytes: int
    scale: float

    @property
    def nbytes(self) -> int:
        return 2 + self.code_bytes


FORMATS = {"q4": BlockFormat(2, 2, 16, 0.004), "q8": BlockFormat(8, 7, 32, 0.0003)}
"""By tpiedge's names of precisions."""


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
        return int(np.prod(self.shape)) // _BLOCK * self.blocks.nbytes


def write_random_gguf(name: str, precision: str, out: Path, seed: int = 0, *, words: bool = False) -> None:
    """The preset `name`; q4 and q8 keep embedding and head as tpiedge's packs do: in bf16, in Q8_0.

    `words`: with a tokenizer of made-up words, without which llama.cpp's server does not answer."""
    config = ModelConfig.from_huggingface(preset(name), f"preset {name}")
    tensors = random_tensors(config, precision)
    values = metadata(config)
    if precision in FORMATS:
        values["general.file_type"] = FORMATS[precision].file_type
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
    """Every tensor of the model, in the order of the file."""
    spec = model_spec(config)
    found = []
    for blob in (spec.embedding, *spec.layers, spec.head):
        for matrix in blob.matrices:
            own = "bf16" if blob is spec.embedding else precision
            blocks = FORMATS.get("q8" if blob is spec.head and own in FORMATS else own)
            found.append(RandomTensor(gguf_name(matrix.source), matrix.source, matrix.source_shape, blocks))
        for vector in blob.vectors:
            found.append(RandomTensor(gguf_name(vector.source), vector.source, (vector.length,)))
    return found


def _pieces(tensor: RandomTensor, generator: np.random.Generator) -> Iterator[bytes]:
    if tensor.blocks is None:
        yield from _plain(tensor, generator)
        return
    left = tensor.nbytes // tensor.blocks.nbytes
    block = np.dtype([("scale", "<f2"), ("codes", "u1", tensor.blocks.code_bytes)])
    while left:
        count = min(left, _PIECE_BLOCKS)
        rows = np.frombuffer(bytearray(generator.bytes(count * block.itemsize)), block)
        rows["scale"] = tensor.blocks.scale
        yield rows.tobytes()
        left -= count


def _plain(tensor: RandomTensor, generator: np.random.Generator) -> Iterator[bytes]:
    """Vectors are ones, matrices near zero."""
    count = int(np.prod(tensor.shape))
    if tensor.is_vector:
        yield np.ones(count, "<f4").tobytes()
        return
    for first in range(0, count, _PIECE_BLOCKS):
        values = generator.standard_normal(min(_PIECE_BLOCKS, count - first), dtype=np.float32) * np.float32(
            0.02
        )
        yield (values.view("<u4") >> 16).astype("<u2").tobytes()
