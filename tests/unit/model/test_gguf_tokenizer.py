"""Tokenizers of GGUF files against the demo model's own, and against SentencePiece's rule done naively."""

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as BackendTokenizer

from tpiedge.model.folder import ConfigFields
from tpiedge.model.gguf.file import GgufHeader
from tpiedge.model.gguf.tokenizer import text_files
from tpiedge.model.source import DEMO, resolve_model
from tpiedge.model.tokenizer import Tokenizer

TEXTS = [
    "The small boat sails home.",
    "It's 12345 o'clock, isn't it?\n\n  Two  spaces, a\ttab.",
    "naïve café, 你好，世界！ 👩‍👩‍👧 <|eos|> after",
    " leading and trailing ",
    "",
]


def files_of(values: Mapping[str, Any], vocab_size: int = 5000) -> Any:
    keys = {f"tokenizer.{name}": value for name, value in values.items()}
    return text_files(GgufHeader(Path("f.gguf"), ConfigFields("f.gguf", keys), {}, ""), vocab_size)


def tokenizer_of(folder: Path, values: Mapping[str, Any]) -> Tokenizer:
    files, notice = files_of(values)
    assert notice is None
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return Tokenizer.open(folder)


@pytest.fixture(scope="module")
def demo_keys() -> dict[str, Any]:
    """The demo model's tokenizer as a file's keys."""
    source = json.loads((resolve_model(DEMO) / "tokenizer.json").read_bytes())
    ids = source["model"]["vocab"] | {token["content"]: token["id"] for token in source["added_tokens"]}
    tokens = [token for token, _ in sorted(ids.items(), key=lambda item: item[1])]
    added = {token["content"] for token in source["added_tokens"]}
    return {
        "ggml.model": "gpt2",
        "ggml.pre": "gpt-2",
        "ggml.tokens": tokens,
        "ggml.token_type": np.array([3 if token in added else 1 for token in tokens], np.int32),
        "ggml.merges": [" ".join(merge) for merge in source["model"]["merges"]],
        "ggml.bos_token_id": 0,
        "ggml.eos_token_id": 1,
        "ggml.add_bos_token": True,
        "chat_template": "{{ messages }}",
    }


@pytest.mark.parametrize("text", TEXTS)
def test_demo_tokenizer_read_from_gguf_equals_its_own(
    tmp_path: Path, demo_keys: dict[str, Any], text: str
) -> None:
    own, ours = Tokenizer.open(resolve_model(DEMO)), tokenizer_of(tmp_path, demo_keys)
    assert ours.encode(text) == own.encode(text)
    assert ours.encode(text, add_special=False) == own.encode(text, add_special=False)
    ids = own.encode(text)
    assert ours.decode(ids) == own.decode(ids) == text.replace("<|eos|>", "")
    assert ours.decode(ids, skip_special=False) == own.decode(ids, skip_special=False)
    assert (ours.bos_id, ours.eos_id, ours.special_ids) == (0, 1, own.special_ids)
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ messages }}"


SPLITS = [
    ("gpt-2", "It's 1234!\n\nA  b", ["It", "'s", " 1234", "!", "\n", "\n", "A", " ", " b"]),
    ("llama-bpe", "It'S 1234!\n\nA  b", ["It", "'S", " ", "123", "4", "!\n\n", "A", " ", " b"]),
    ("qwen2", "It'S 1234!\n\nA  b", ["It", "'S", " ", "1", "2", "3", "4", "!\n\n", "A", " ", " b"]),
    ("smollm", "It's 12!\n\nA", ["It", "'s", " ", "1", "2", "!", "\n", "\n", "A"]),
    ("refact", "It's 12!\n\nA", ["It", "'s", " ", "1", "2", "!", "\n", "\n", "A"]),
    ("dbrx", "It'S 1234!\n\nA", ["It", "'S", " ", "123", "4", "!\n\n", "A"]),
    ("gpt-4o", "camelCase's A1234", ["camel", "Case's", " A", "123", "4"]),
    ("tekken", "camelCase A1", ["camel", "Case", " A", "1"]),
]


@pytest.mark.parametrize(("name", "text", "pieces"), SPLITS)
def test_pre_tokenizers_split_text_as_expected(
    tmp_path: Path, demo_keys: dict[str, Any], name: str, text: str, pieces: list[str]
) -> None:
    tokenizer_of(tmp_path, demo_keys | {"ggml.pre": name})
    found = BackendTokenizer.from_file(str(tmp_path / "tokenizer.json")).pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:stop] for _, (start, stop) in found] == pieces


_BYTES = [f"<0x{value:02X}>" for value in range(256)]
_PIECES = ["▁", "a", "b", "n", "▁a", "an", "▁b", "ana", "▁ban", "ban", "na", "▁an", "aa", "▁▁", "ab"]


@pytest.fixture(scope="module")
def piece_keys() -> dict[str, Any]:
    """Pieces that overlap in many ways, with scores that are not in the order of ids."""
    tokens = ["<unk>", "<s>", "</s>", *_BYTES, *_PIECES, "<tool>"]
    scores = np.zeros(len(tokens), np.float32)
    scores[259 : 259 + len(_PIECES)] = -np.random.default_rng(7).permutation(len(_PIECES)).astype(np.float32)
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(_PIECES) + [4]
    return {
        "ggml.model": "llama",
        "ggml.tokens": tokens,
        "ggml.scores": scores,
        "ggml.token_type": np.array(kinds, np.int32),
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.unknown_token_id": 0,
    }


def by_the_rule(text: str, keys: Mapping[str, Any]) -> list[int]:
    """Merges the pair whose piece has the best score, the leftmost of equal ones, until no pair is left."""
    scores = {
        token: (float(score), index)
        for index, (token, kind, score) in enumerate(
            zip(keys["ggml.tokens"], keys["ggml.token_type"], keys["ggml.scores"], strict=True)
        )
        if kind == 1
    }
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [
            (-scores[left + right][0], at)
            for at, (left, right) in enumerate(pairwise(symbols))
            if left + right in scores
        ]
        if not pairs:
            break
        at = min(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [scores[symbol][1]] if symbol in scores else [3 + byte for byte in symbol.encode()]
    return ids


@settings(max_examples=100)
@given(text=st.text("abn é", max_size=24))
def test_sentencepiece_merges_by_score(
    piece_tokenizer: Tokenizer, piece_keys: dict[str, Any], text: str
) -> None:
    ids = by_the_rule(text, piece_keys)
    assert piece_tokenizer.encode(text, add_special=False) == ids
    assert piece_tokenizer.decode(ids) == text


@pytest.fixture(scope="module")
def piece_tokenizer(tmp_path_factory: pytest.TempPathFactory, piece_keys: dict[str, Any]) -> Tokenizer:
    return tokenizer_of(tmp_path_factory.mktemp("pieces"), piece_keys)


def test_sentencepiece_special_tokens_are_applied(tmp_path: Path, piece_keys: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(tmp_path, piece_keys)
    assert tokenizer.encode("a")[0] == 1
    assert tokenizer.encode("<tool>", add_special=False) == [len(piece_keys["ggml.tokens"]) - 1]
    assert tokenizer.special_ids == {0, 1, 2}
    plain = tokenizer_of(tmp_path, piece_keys | {"ggml.add_space_prefix": False, "ggml.add_bos_token": False})
    assert plain.encode("a") == [piece_keys["ggml.tokens"].index("a")]
    assert plain.decode(plain.encode(" a")) == " a"


def test_user_defined_pieces_are_cut_out_before_merges(tmp_path: Path, piece_keys: dict[str, Any]) -> None:
    """Gemma has such pieces for runs of spaces and of lines, the longest of which counts."""
    tokens, cut = piece_keys["ggml.tokens"], ["  ", "   ", "\n", "\n\n", "\t"]
    scores = np.append(piece_keys["ggml.scores"], np.zeros(len(cut), np.float32))
    kinds = np.append(piece_keys["ggml.token_type"], np.full(len(cut), 4, np.int32))
    changes = {"ggml.tokens": [*tokens, *cut], "ggml.scores": scores, "ggml.token_type": kinds}
    tokenizer = tokenizer_of(tmp_path, piece_keys | changes | {"ggml.add_space_prefix": False})
    pieces = ["an", "\n\n", "\n", "   ", "▁b", "\t", "  ", "a"]
    ids = [[*tokens, *cut].index(piece) for piece in pieces]
    text = "".join(pieces).replace("▁", " ")
    assert tokenizer.encode(text, add_special=False) == ids
    assert tokenizer.decode(ids) == text


_MERGES = ["a n", "▁ a", "▁a n", "\n \n", "an a", "▁ b", "▁b an", "b an", "▁ ▁", "a b", "a a", "n a", "a x"]
_RUNS = ["\n", "\n\n", "\n\n\n", "\n\n\n\n\n"]


@pytest.fixture(scope="module")
def merged_keys(piece_keys: dict[str, Any]) -> dict[str, Any]:
    """Pieces with merges in another order than that of scores, and runs of lines that merges do not make."""
    tokens = [*piece_keys["ggml.tokens"], *_RUNS]
    kinds = np.append(piece_keys["ggml.token_type"], np.ones(len(_RUNS), np.int32))
    changes = {
        "ggml.model": "gemma4",
        "ggml.tokens": tokens,
        "ggml.token_type": kinds,
        "ggml.merges": _MERGES,
    }
    return piece_keys | changes | {"ggml.scores": np.zeros(len(tokens), np.float32)}


@pytest.fixture(scope="module")
def merged_tokenizer(tmp_path_factory: pytest.TempPathFactory, merged_keys: dict[str, Any]) -> Tokenizer:
    return tokenizer_of(tmp_path_factory.mktemp("merged"), merged_keys)


def by_rank(text: str, tokens: list[str]) -> list[int]:
    """Merges the pair of the lowest rank, the leftmost of equal ones, within lines and runs of line ends."""
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(_MERGES)}
    ids: list[int] = []
    for part in re.findall(r"[^\n]+|\n+", text.replace(" ", "▁")):
        symbols = [part] if part in _RUNS else list(part)
        while pairs := [(ranks[pair], at) for at, pair in enumerate(pairwise(symbols)) if pair in ranks]:
            at = min(pairs)[1]
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        for symbol in symbols:
            ids += [tokens.index(symbol)] if symbol in tokens else [3 + byte for byte in symbol.encode()]
    return ids


@settings(max_examples=200)
@given(text=st.text("abn é", max_size=24), lines=st.integers(0, 3))
def test_gemma_4_merges_by_rank(
    merged_tokenizer: Tokenizer, merged_keys: dict[str, Any], text: str, lines: int
) -> None:
    text = f"{text}{_RUNS[lines]}{text[::-1]}"
    ids = by_rank(text, merged_keys["ggml.tokens"])
    assert merged_tokenizer.encode(text, add_special=False) == ids
    assert merged_tokenizer.encode(text) == [1, *ids]
    assert merged_tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("changes", "notice"),
    [
        ({"ggml.model": "gemma4", "ggml.merges": None}, r"\('gemma4, gpt-2'\) is of no kind that is known"),
        ({"ggml.model": "t5"}, r"\('t5, gpt-2'\) is of no kind that is known"),
        ({"ggml.pre": "new-model"}, "'gpt2, new-model'"),
        ({"ggml.pre": None}, "'gpt2, None'"),
        ({"ggml.merges": None}, "of no kind that is known"),
        ({"ggml.tokens": None}, "the file has no tokenizer"),
        ({"ggml.tokens": ["x"] * 5001}, "the tokenizer has 5001 tokens, the embedding 5000 rows"),
    ],
)
def test_a_tokenizer_that_is_not_known_is_left_out(
    demo_keys: dict[str, Any], changes: dict[str, Any], notice: str
) -> None:
    files, found = files_of(demo_keys | changes)
    assert set(files) == {"chat_template.jinja"}
    assert re.search(notice, found)
