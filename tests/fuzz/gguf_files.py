"""GGUF files."""

from pathlib import Path
from typing import Any, Final

from tests.fuzz.forms import GGUF
from tests.fuzz.parser import Parser, Read, words_of


def _gguf(folder: Path) -> Read:
    from tpiedge.model.gguf.model import GgufModel

    path = folder / "model.gguf"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        model = GgufModel.open(path)
        model.storage(None)
        model.text()

    return read


def _gguf_seeds() -> list[bytes]:
    """Headers of three families; the vectors' bytes are zeros."""

    def text(key: str, value: str) -> list[Any]:
        return [key.encode(), 8, value.encode()]

    def file(name: str, tokenizer: list[Any], kind: int) -> bytes:
        sizes = {"block_count": 1, "context_length": 128, "embedding_length": 32, "feed_forward_length": 32,
                 "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 16,
                 "attention.value_length": 16, "rope.dimension_count": 16, "vocab_size": 6}  # fmt: skip
        keys = [text("general.architecture", name), [b"general.alignment", 4, 32]]
        keys += [[f"{name}.{key}".encode(), 4, value] for key, value in sizes.items()]
        keys += [[f"{name}.attention.layer_norm_rms_epsilon".encode(), 6, 1e-5]]
        keys += [[f"{name}.rope.freq_base".encode(), 6, 10000.0], *tokenizer]
        shapes = {"token_embd": [32, 6], "output": [32, 6], "output_norm": [32]}
        shapes |= {f"blk.0.{part}": [32] for part in ("attn_norm", "ffn_norm")}
        if name == "qwen3":
            shapes |= {f"blk.0.{part}": [16] for part in ("attn_q_norm", "attn_k_norm")}
        if name == "qwen2":
            shapes |= {
                f"blk.0.{part}.bias": [size]
                for part, size in (("attn_q", 32), ("attn_k", 16), ("attn_v", 16))
            }
        shapes |= {"blk.0.attn_q": [32, 32], "blk.0.attn_k": [32, 16], "blk.0.attn_v": [32, 16]}
        shapes |= {f"blk.0.{part}": [32, 32] for part in ("attn_output", "ffn_gate", "ffn_up", "ffn_down")}
        tensors, end = [], 0
        for part, shape in shapes.items():
            one = 0 if len(shape) == 1 else kind
            name_ = part if part.endswith(".bias") else f"{part}.weight"
            tensors.append([name_.encode(), shape, one, end])
            numbers = shape[0] * (shape[1] if len(shape) > 1 else 1)
            nbytes = 4 * numbers if one == 0 else numbers // 32 * {2: 18, 8: 34}[one]
            end += -(-nbytes // 32) * 32
        return GGUF.write([3, keys, tensors, bytes(end)])

    tokens = [b"<unk>", b"<s>", b"</s>", "▁a".encode(), b"b", b"<0x41>"]
    sentencepiece = [
        text("tokenizer.ggml.model", "llama"),
        [b"tokenizer.ggml.tokens", 9, [8, tokens]],
        [b"tokenizer.ggml.scores", 9, [6, [0.0, 0.0, 0.0, -1.0, -2.0, 0.0]]],
        [b"tokenizer.ggml.token_type", 9, [5, [2, 3, 3, 1, 1, 6]]],
        [b"tokenizer.ggml.bos_token_id", 4, 1],
        [b"tokenizer.ggml.eos_token_id", 4, 2],
        [b"tokenizer.ggml.add_bos_token", 7, 1],
        text("tokenizer.chat_template", "{{ messages[0]['content'] }}"),
    ]
    bytewise = [
        text("tokenizer.ggml.model", "gpt2"),
        text("tokenizer.ggml.pre", "qwen2"),
        [b"tokenizer.ggml.tokens", 9, [8, [b"a", b"b", b"ab", b"<s>", b"</s>", "Ġ".encode()]]],
        [b"tokenizer.ggml.token_type", 9, [5, [1, 1, 1, 3, 3, 1]]],
        [b"tokenizer.ggml.merges", 9, [8, [b"a b"]]],
        [b"tokenizer.ggml.eos_token_id", 4, 4],
    ]
    return [file("llama", sentencepiece, 2), file("qwen2", bytewise, 8), file("qwen3", [], 0)]


PARSERS: Final = (
    Parser(
        "gguf", _gguf, _gguf_seeds, form=GGUF,
        words=words_of("GGUF general.alignment llama.block_count rope_freqs.weight llama qwen2"),
    ),
)  # fmt: skip
