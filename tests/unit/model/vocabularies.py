"""Small tokenizers of the kinds in use: byte-level, and Llama 2's with byte fallback in two spellings."""

import json

from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from tpiedge.model.text_child import LoadedTokenizer
from tpiedge.model.tokenizer import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. 1234567890",
    "Once upon a time there was a small house by the sea, and in the house lived a cat.",
    "def main(args):\n    return args  # naïve café über",
    "你好，世界！ emoji 😀😃 and more: 👩‍👩‍👧",
] * 5
SPECIAL = ["<unk>", "<s>", "</s>"]


def byte_level() -> Backend:
    backend = Backend(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<tool>", special=False)])
    return backend


def byte_fallback() -> Backend:
    """Builds one like Llama 2's: pieces with a leading space, unknown characters as <0x..> tokens."""
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL + [f"<0x{byte:02X}>" for byte in range(256)],
        show_progress=False,
        limit_alphabet=200,
    )
    draft = Backend(BPE(unk_token="<unk>"))
    prepare = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    draft.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    draft.train_from_iterator([line for line in CORPUS if line.isascii()], trainer)
    model = json.loads(draft.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    backend = Backend(
        BPE(vocab=model["vocab"], merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = prepare
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(SPECIAL)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return backend


def metaspace() -> Backend:
    """Builds Llama's as transformers 5 does: the Metaspace decoder drops the first piece's space."""
    backend = byte_fallback()
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    return backend


KINDS = {"byte-level": byte_level, "byte-fallback": byte_fallback, "metaspace": metaspace}


def loaded(backend: Backend) -> LoadedTokenizer:
    found = LoadedTokenizer()
    found.do(b"O", backend.to_str().encode())
    return found


TOKENIZERS = {
    name: Tokenizer(loaded(build()), {"bos_token": "<s>", "eos_token": "</s>"})
    for name, build in KINDS.items()
}
