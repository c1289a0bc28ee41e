"""Translates a GGUF file's tokenizer to tokenizer.json and tokenizer_config.json. "gpt2" is byte-level BPE; the key
`tokenizer.ggml.pre` names the rule that cuts text. "llama" is SentencePiece's BPE; scores order the merges. "gemma4" is
the same with merges in the file."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tpiedge.model.gguf.config import ids_of, marked_end_ids, named_id
from tpiedge.model.gguf.file import GgufHeader
from tpiedge.model.template import ADDITIONAL_TEMPLATES
from tpiedge.sanitise import quote

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_SPACE = "▁"
_TEMPLATE = "tokenizer.chat_template"
_TEMPLATE_NAME = re.compile(r"\.\w{1,64}", re.ASCII)
_SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
# About twice the largest vocabulary in use; tokenizer.py has bounds of its own.
_MAX_TOKENS = 600_000
_MAX_MERGES = 1_200_000
_MAX_LETTERS = 8_000_000
_MAX_NEWLINES = 64

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
    r"|%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LINES = r"[^\n]+|\n+"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


@dataclass(frozen=True)
class _Cut:
    """A family's way of cutting text before merges. Without `pattern`, it is that of GPT-2."""

    pattern: str | None = None
    digits: bool = False  # first cuts off each digit
    normaliser: str | None = None
    whole_words: bool = False  # a word that is a token needs no merges
    adds_bos: bool = False


_LLAMA3 = _Cut(_WORDS % r"\p{N}{1,3}", whole_words=True, adds_bos=True)
_QWEN2 = _Cut(_WORDS % r"\p{N}", normaliser="NFC")
_CUTS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _Cut(_WORDS % r"\p{N}{1,3}")),
    **dict.fromkeys(("smollm", "refact", "starcoder"), _Cut(digits=True)),
    **dict.fromkeys(("gpt-2", "olmo"), _Cut()),
    "gpt-4o": _Cut(_CASED_WORDS % (_ENDING, _ENDING, r"\p{N}{1,3}")),
    "tekken": _Cut(_CASED_WORDS % ("", "", r"\p{N}"), whole_words=True, adds_bos=True),
}


class _NoTokenizer(Exception):
    """No tokenizer can be made; the message says why."""


@dataclass(frozen=True)
class _Vocabulary:
    tokens: Sequence[str]
    kinds: Sequence[float]
    scores: Sequence[float]


def text_files(header: GgufHeader, vocab_size: int) -> tuple[dict[str, bytes], str | None]:
    """Returns (file name -> content, why the tokenizer is missing or None)."""
    files = _templates(header)
    try:
        vocabulary = _vocabulary(header, vocab_size)
        adds_bos, tokenizer = _tokenizer_of(header, vocabulary)
    except _NoTokenizer as error:
        return files, str(error)
    files["tokenizer.json"] = json.dumps(tokenizer, ensure_ascii=False).encode("utf-8", "replace")
    files["tokenizer_config.json"] = json.dumps(_config(header, vocabulary, adds_bos)).encode()
    return files, None


def _templates(header: GgufHeader) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for key, template in header.fields.values.items():
        kind, _, name = key.partition(_TEMPLATE)
        if kind or not isinstance(template, str) or not 0 < len(template.encode()) <= 1_000_000:
            continue
        if not name:
            files["chat_template.jinja"] = template.encode()
        elif _TEMPLATE_NAME.fullmatch(name):
            files[f"{ADDITIONAL_TEMPLATES}/{name[1:]}.jinja"] = template.encode()
    return files


def _vocabulary(header: GgufHeader, vocab_size: int) -> _Vocabulary:
    tokens = header.fields.raw("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise _NoTokenizer("the file has no tokenizer")
    if len(tokens) > vocab_size:
        raise _NoTokenizer(f"the tokenizer has {len(tokens)} tokens, the embedding {vocab_size} rows")
    _check_count("tokens", len(tokens), _MAX_TOKENS)

    def numbers(name: str, default: int) -> list[float]:
        found = header.fields.raw(f"tokenizer.ggml.{name}")
        if not isinstance(found, np.ndarray) or len(found) != len(tokens):
            found = np.full(len(tokens), default)
        return list(found.astype(np.float64).tolist())

    kinds = numbers("token_type", 1)
    for end in marked_end_ids(header):
        kinds[end] = _CONTROL
    return _Vocabulary(tokens, kinds, numbers("scores", 0))


def _tokenizer_of(header: GgufHeader, vocabulary: _Vocabulary) -> tuple[bool, dict[str, object]]:
    """Returns (whether BOS is added by default, tokenizer.json's object)."""
    kind = str(header.fields.raw("tokenizer.ggml.model"))
    if kind == "llama":
        prefixed = header.fields.raw("tokenizer.ggml.add_space_prefix") is not False
        return True, _sentencepiece(vocabulary, _merges_by_score(vocabulary), None, prefixed=prefixed)
    cut = _CUTS.get(str(header.fields.raw("tokenizer.ggml.pre"))) if kind == "gpt2" else None
    merges = header.fields.raw("tokenizer.ggml.merges")
    if (cut is None and kind != "gemma4") or not isinstance(merges, list):
        name = f"{kind}, {header.fields.raw('tokenizer.ggml.pre')}"
        raise _NoTokenizer(f"the tokenizer ({quote(name)}) is of no kind that is known")
    _check_count("merges", len(merges), _MAX_MERGES)
    if cut is None:
        known = dict.fromkeys(_known([*merges, *_newlines(vocabulary)], ids_of(vocabulary.tokens)))
        return True, _sentencepiece(vocabulary, [*known], _split(_LINES), prefixed=False)
    return cut.adds_bos, _byte_level(vocabulary, merges, cut)


def _check_count(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise _NoTokenizer(f"the tokenizer has more than {limit} {what}: no model needs as many")


def _byte_level(vocabulary: _Vocabulary, merges: Sequence[object], cut: _Cut) -> dict[str, object]:
    ids = ids_of(vocabulary.tokens)
    known = _known(merges, ids)
    digits = {"type": "Digits", "individual_digits": True}
    steps = [*([digits] if cut.digits else []), *([_split(cut.pattern)] if cut.pattern is not None else [])]
    steps.append(_bytes(use_regex=cut.pattern is None))
    return _tokenizer(
        vocabulary,
        {"ignore_merges": cut.whole_words, "vocab": ids, "merges": known},
        normalizer=None if cut.normaliser is None else {"type": cut.normaliser},
        pre_tokenizer={"type": "Sequence", "pretokenizers": steps},
        decoder=_bytes(use_regex=True),
    )


def _known(merges: Sequence[object], ids: Mapping[str, int]) -> list[str]:
    """Returns the merges of tokens into tokens."""
    pairs = ((merge, *merge.partition(" ")[::2]) for merge in merges if isinstance(merge, str))
    return [merge for merge, left, right in pairs if left in ids and right in ids and left + right in ids]


def _split(pattern: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _bytes(use_regex: bool) -> dict[str, object]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}


def _sentencepiece(
    vocabulary: _Vocabulary, merges: Sequence[str], cut: Mapping[str, object] | None, *, prefixed: bool
) -> dict[str, object]:
    unknown = vocabulary.tokens[vocabulary.kinds.index(_UNKNOWN)] if _UNKNOWN in vocabulary.kinds else None
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    prefix: list[object] = [{"type": "Prepend", "prepend": _SPACE}] if prefixed else []
    strip: list[object] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    model = {
        "unk_token": unknown,
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": ids_of(vocabulary.tokens),
        "merges": merges,
    }
    return _tokenizer(
        vocabulary,
        model,
        normalizer={"type": "Sequence", "normalizers": [*prefix, spaces]},
        pre_tokenizer=cut,
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _newlines(vocabulary: _Vocabulary) -> list[str]:
    """Returns merges that make a token of as many newlines as there are, if there is one, as llama.cpp does."""
    runs = sorted(
        {token for token in vocabulary.tokens if 1 < len(token) <= _MAX_NEWLINES and not token.strip("\n")}
    )
    return [f"{run[:at]} {run[at:]}" for run in runs for at in range(1, len(run))]


def _merges_by_score(vocabulary: _Vocabulary) -> list[str]:
    """Returns the merges by their scores, best first, as SentencePiece orders them."""
    pieces = {
        token: score
        for token, kind, score in zip(vocabulary.tokens, vocabulary.kinds, vocabulary.scores, strict=True)
        if kind not in (_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE) and " " not in token and len(token) <= 64
    }
    _check_count("letters in its pieces", sum(map(len, pieces)), _MAX_LETTERS)
    merges: list[str] = []
    for piece, _ in sorted(pieces.items(), key=lambda item: -item[1]):
        splits = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        merges += [f"{left} {right}" for left, right in splits if left in pieces and right in pieces]
        _check_count("merges", len(merges), _MAX_MERGES)
    return merges


def _tokenizer(vocabulary: _Vocabulary, model: Mapping[str, object], **steps: object) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": index, "content": token, "special": kind != _USER_DEFINED, **flags}
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token
    ]
    whole = {"version": "1.0", "added_tokens": added, **steps, "post_processor": None}
    return whole | {"model": {"type": "BPE", **model}}


def _config(header: GgufHeader, vocabulary: _Vocabulary, adds_bos: bool) -> dict[str, object]:
    ids = {field: named_id(header, name, len(vocabulary.tokens)) for name, field in _SPECIAL.items()}
    config: dict[str, object] = {
        field: vocabulary.tokens[index] for field, index in ids.items() if index is not None
    }
    for token, default in (("bos_token", adds_bos), ("eos_token", False)):
        wanted = header.fields.values.get(f"tokenizer.ggml.add_{token}", default)
        config[f"add_{token}"] = wanted is True and token in config
    return config
