"""The worst case of a tokenizer's chains, told from its file. What is accepted keeps to it; so is what is in use."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from tests.unit.model.vocabularies import KINDS
from tpiedge.errors import UserError
from tpiedge.model.source import DEMO, resolve_model
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.model.tokenizer_growth import MAX_GROWTH, text_growth

BYTES = {"type": "BPE", "byte_fallback": True, "merges": []} | {
    "vocab": {f"<0x{byte:02X}>": byte for byte in range(256)}
}
TEXT = st.text(st.sampled_from("ab A▁.中ﷺΐİẞ\u0344\U0001d160é\n"), max_size=12)


def sequence(nested: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", nested: list(steps)}


def replace(found: str, by: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: found}, "content": by}


def split(pattern: str, behavior: str = "Isolated") -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def prepend(text: str) -> dict[str, Any]:
    return {"type": "Prepend", "prepend": text}


def metaspace(scheme: str) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}


def byte_level(prefix: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": prefix}


def charsmap(*replacements: str) -> dict[str, Any]:
    """A table of an empty trie."""
    blob = b"".join(text.encode() + b"\0" for text in replacements)
    table = struct.pack("<I", 4) + bytes(4) + blob
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def template(*pieces: str, ids: int = 1) -> dict[str, Any]:
    return {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence" if piece == "A" else "SpecialToken": {"id": piece, "type_id": 0}} for piece in pieces
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"s": {"id": "s", "ids": [0] * ids, "tokens": ["<0x00>"] * ids}},
    }


def file_of(**sections: Any) -> bytes:
    return json.dumps({"version": "1.0", "model": BYTES} | sections).encode()


SHORT = st.text(st.sampled_from("ab ▁ﷺ"), max_size=3)
PATTERNS = st.sampled_from(["", "a*", "^", "$", "(?=.)", ".", "a", " {2,}", "\\b", "(?<=a)", "a|", "\\p{L}"])
NORMALIZERS = st.one_of(
    st.sampled_from(
        [{"type": kind} for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")]
    ),
    st.builds(replace, SHORT, SHORT),
    st.builds(lambda pattern, by: replace(pattern, by, "Regex"), PATTERNS, SHORT),
    st.builds(prepend, SHORT),
    st.just(
        {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": False,
            "lowercase": True,
        }
    ),
    st.just({"type": "Strip", "strip_left": True, "strip_right": False}),
    st.just({"type": "ByteLevel"}),
)
PRE_TOKENIZERS = st.one_of(
    st.builds(metaspace, st.sampled_from(["always", "never", "first"])),
    st.builds(byte_level, st.booleans()),
    st.builds(split, PATTERNS, st.sampled_from(["Isolated", "Removed", "MergedWithNext", "Contiguous"])),
    st.sampled_from(
        [{"type": kind} for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts")]
    ),
    st.just({"type": "Digits", "individual_digits": True}),
    st.just({"type": "CharDelimiterSplit", "delimiter": "a"}),
    st.just({"type": "Punctuation", "behavior": "Isolated"}),
    st.just({"type": "FixedLength", "length": 1}),
)
POST_PROCESSORS = st.one_of(
    st.lists(st.sampled_from("As"), max_size=4).map(lambda pieces: template(*pieces, ids=3)),
    st.builds(byte_level, st.booleans()),
)
DECODERS = st.one_of(
    st.builds(replace, SHORT, SHORT),
    st.builds(lambda pattern, by: replace(pattern, by, "Regex"), PATTERNS, SHORT),
    st.just({"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
    st.builds(lambda suffix: {"type": "BPEDecoder", "suffix": suffix}, SHORT),
    st.builds(lambda prefix: {"type": "WordPiece", "prefix": prefix, "cleanup": True}, SHORT),
    st.builds(
        lambda pad, word: {"type": "CTC", "pad_token": pad, "word_delimiter_token": word, "cleanup": True},
        SHORT,
        SHORT,
    ),
    st.sampled_from([{"type": kind} for kind in ("ByteFallback", "Fuse")]),
    st.just(metaspace("first")),
)


def opened(data: bytes) -> Tokenizer:
    """Only of what is accepted."""
    try:
        growth = text_growth(data, "t")
        return Tokenizer(Backend.from_buffer(data), {}, growth=growth)
    except UserError:
        reject()


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """Only of what the library can encode: some chains end it."""
    try:
        return tokenizer.encode(text)
    except UserError:
        reject()


@given(
    st.lists(NORMALIZERS, max_size=4), st.lists(PRE_TOKENIZERS, max_size=4), st.lists(POST_PROCESSORS, max_size=2), TEXT
)  # fmt: skip
def test_no_text_becomes_more_tokens_than_was_said(
    normalizers: Any, pre_tokenizers: Any, post_processors: Any, text: str
) -> None:
    data = file_of(
        normalizer=sequence("normalizers", *normalizers),
        pre_tokenizer=sequence("pretokenizers", *pre_tokenizers),
        post_processor=sequence("processors", *post_processors),
    )
    tokenizer = opened(data)
    around = len(encoded(tokenizer, ""))
    assert len(encoded(tokenizer, text)) <= tokenizer.growth * len(text.encode()) + around


@given(st.lists(DECODERS, max_size=4), TEXT)
def test_no_tokens_become_more_text_than_is_allowed(decoders: Any, text: str) -> None:
    tokenizer = opened(file_of(decoder=sequence("decoders", *decoders)))
    ids = encoded(tokenizer, text)
    try:
        decoded = tokenizer.decode(ids)
    except UserError:
        reject()
    assert len(decoded.encode()) <= MAX_GROWTH * len("<0x00>") * (len(ids) + 1)


LLAMA2 = sequence("normalizers", prepend("▁"), replace(" ", "▁"))
GPT2 = byte_level(False)
WORDS = split(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+")
SENTENCEPIECE = sequence(
    "normalizers",
    charsmap("a", "صلى الله عليه وسلم"),  # what U+FDFA becomes, the longest of NFKC
    {"type": "Strip", "strip_left": False, "strip_right": True},
    replace(" {2,}", "▁", "Regex"),
)
IN_USE: dict[str, tuple[float, dict[str, Any]]] = {
    "GPT-2": (2.0, {"pre_tokenizer": GPT2, "post_processor": GPT2, "decoder": GPT2}),
    "Llama 3": (
        2.0,
        {
            "pre_tokenizer": sequence("pretokenizers", WORDS, GPT2),
            "post_processor": sequence("processors", GPT2, template("s", "A")),
            "decoder": byte_level(True),
        },
    ),
    "Qwen": (6.0, {"normalizer": {"type": "NFC"}, "pre_tokenizer": sequence("pretokenizers", WORDS, GPT2)}),
    "Llama 2": (
        12.0,
        {
            "normalizer": LLAMA2,
            "post_processor": template("s", "A"),
            "decoder": sequence(
                "decoders",
                replace("▁", " "),
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ),
        },
    ),
    "Gemma": (3.0, {"normalizer": replace(" ", "▁"), "pre_tokenizer": split(" ", "MergedWithPrevious")}),
    "SentencePiece's unigrams": (
        198.0,
        {"normalizer": SENTENCEPIECE, "pre_tokenizer": metaspace("always"), "decoder": metaspace("always")},
    ),
}


@pytest.mark.parametrize("name", list(IN_USE))
def test_what_is_in_use_is_accepted(name: str) -> None:
    growth, sections = IN_USE[name]
    assert text_growth(file_of(**sections), "t") <= growth


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_tests_own_tokenizers_are_accepted(kind: str) -> None:
    assert text_growth(KINDS[kind]().to_str(pretty=True).encode(), "t") <= 12


def test_the_demo_knows_its_growth() -> None:
    assert Tokenizer.open(resolve_model(DEMO)).growth <= 4


TEN_TIMES = [replace("a", "a" * 10)] * 5
DOUBLING = sequence("pretokenizers", *([byte_level(False)] * 9))
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "normalizers": ({"normalizer": sequence("normalizers", *TEN_TIMES)}, "its normalizer can make"),
    "nested": (
        {"normalizer": sequence("normalizers", sequence("normalizers", *TEN_TIMES[:2]), *TEN_TIMES[:1])},
        "its normalizer can make",
    ),
    "one long one": ({"normalizer": prepend("x" * 257)}, "its normalizer can make"),
    "empty patterns": (
        {"normalizer": sequence("normalizers", *([replace("", "a")] * 8))},
        "its normalizer can",
    ),
    "a table": ({"normalizer": charsmap("a", "x" * 300)}, "its normalizer can make"),
    "pre-tokenizers": ({"pre_tokenizer": DOUBLING}, "its pre_tokenizer can make"),
    "both": (
        {"normalizer": replace("a", "a" * 100), "pre_tokenizer": metaspace("always")},
        "its normalizer and pre_tokenizer together can make",
    ),
    "the text again and again": ({"post_processor": template(*"A" * 300)}, "its post_processor can make"),
    "many special tokens": ({"post_processor": template("s", "A", ids=300)}, "its post_processor can make"),
    "decoders": ({"decoder": sequence("decoders", *TEN_TIMES)}, "its decoder can make"),
    "an unknown step": ({"normalizer": {"type": "Expand"}}, "'Expand' among its normalizers is not known"),
    "a step without a kind": ({"pre_tokenizer": {"t": 1}}, "None among its pretokenizers is not known"),
    "no step": ({"decoder": [1]}, "[1] is no step of a tokenizer"),
    "no list": ({"normalizer": {"type": "Sequence"}}, "a Sequence has no list of normalizers"),
    "no text": ({"normalizer": {"type": "Prepend", "prepend": 1}}, "prepend of 'Prepend' is 1, not a text"),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_what_has_no_bound_is_refused(name: str, tmp_path: Path) -> None:
    sections, said = HOSTILE[name]
    (tmp_path / "tokenizer.json").write_bytes(file_of(**sections))
    with pytest.raises(UserError) as refused:
        Tokenizer.open(tmp_path)
    assert said in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize(
    "data",
    [
        b'{"model":{},"normalizer":null,"normalizer":{"type":"NFC"}}',
        b'{"model":{},"normalizer":null,"norm\\u0061lizer":{"type":"NFC"}}',
        b'{"model":{"a":[[1,2],["]\\"",{}]]},"normalizer":{"type":"Expand"}}',
        b'{"model":"}","normalizer":{"type":"Expand"}}',
    ],
)
def test_every_section_is_found_whatever_lies_before_it(data: bytes) -> None:
    with pytest.raises(UserError, match=r"occurs twice|Expand"):
        text_growth(data, "t")


def test_a_token_that_is_far_too_long_is_refused(tmp_path: Path) -> None:
    """Its text is copied for each of its places; two texts of one id make it those of a single letter."""
    model = {"type": "BPE", "vocab": {"a": 0, "x" * 100_000: 0}, "merges": []}
    (tmp_path / "tokenizer.json").write_bytes(file_of(model=model))
    with pytest.raises(UserError, match="a token of 100000 characters"):
        Tokenizer.open(tmp_path)


def test_a_decoder_that_fails_says_so(tmp_path: Path) -> None:
    letters = {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}
    broken = {"type": "Strip", "content": "a", "start": 0, "stop": 2}
    (tmp_path / "tokenizer.json").write_bytes(file_of(model=letters, decoder=broken))
    with pytest.raises(UserError, match="cannot decode"):
        Tokenizer.open(tmp_path).decode([0, 0])
