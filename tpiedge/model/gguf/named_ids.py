"""Tokens with a part of their own in a GGUF file: those that begin a text, and those that end one.

A file with a vocabulary of SentencePiece's kind need not name the tokens that begin and end a text: without a valid
number they are 1 and 2, as llama.cpp has it.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from tpiedge.model.end_tokens import ending_ids
from tpiedge.model.gguf.file import GgufHeader

_ENDS = ("eos", "eot", "eom")
_SENTENCEPIECE = "llama"
_USUAL: Mapping[str, int] = MappingProxyType({"bos": 1, "eos": 2})
_NORMAL = 1


def named_id(header: GgufHeader, name: str, rows: int) -> int | None:
    """The token that is the file's `name` ("bos", "eos", ...), below `rows`."""
    value = header.values.get(f"tokenizer.ggml.{name}_token_id")
    if isinstance(value, int) and 0 <= value < rows:
        return value
    if header.values.get("tokenizer.ggml.model") != _SENTENCEPIECE:
        return None
    usual = _USUAL.get(name)
    return usual if usual is not None and usual < rows else None


def end_ids(header: GgufHeader, rows: int) -> list[int]:
    """Every token that ends an answer: those that the file names, then those that are known by their texts."""
    named = (named_id(header, name, rows) for name in _ENDS)
    known = (token for token in marked_end_ids(header) if token < rows)
    return list(dict.fromkeys((*(token for token in named if token is not None), *known)))


def marked_end_ids(header: GgufHeader) -> list[int]:
    """The tokens that end an answer by their texts, whatever kind the file says they are of."""
    tokens, kinds = header.values.get("tokenizer.ggml.tokens"), header.values.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, list):
        return []
    ids: dict[str, int] = {}
    for index, text in enumerate(tokens):
        ids.setdefault(text, index)
    marks = set(np.flatnonzero(kinds != _NORMAL).tolist()) if isinstance(kinds, np.ndarray) else set()
    return list(ending_ids(ids, marks))
