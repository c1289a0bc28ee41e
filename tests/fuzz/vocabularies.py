"""A model's tokenizer."""

import json
from pathlib import Path
from typing import Any, Final

from tests.fuzz.forms import JSON
from tests.fuzz.parser import Parser, Read, words_of
from tpiedge.errors import UserError

_TEXTS = ("The quick brown fox", " a  b\n", "naïve 你好 🙂 ﷺ", "")


def _tokenizer(folder: Path) -> Read:
    from tpiedge.model.detokenizer import Detokenizer
    from tpiedge.model.tokenizer import Tokenizer

    def read(data: bytes) -> None:
        (folder / "tokenizer.json").write_bytes(data)
        tokenizer = Tokenizer.open(folder)
        refusal = None
        for text in _TEXTS:
            try:
                ids = tokenizer.encode(text)
                tokenizer.decode(ids[:64])
                detokenizer = Detokenizer(tokenizer)
                for token_id in ids[:32]:
                    detokenizer.push(token_id)
                    tokenizer.token_bytes(token_id)
                detokenizer.finish()
            except UserError as error:
                refusal = error
        if refusal is not None:
            raise refusal

    return read


def _tokenizer_seeds() -> list[bytes]:
    from tests.unit.model.vocabularies import KINDS

    small: dict[str, Any] = {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "ab": 2, "▁": 3},
        "merges": [["a", "b"]],
    }
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁", -1.0], ["a", -2.0]]}
    chains: tuple[dict[str, Any], ...] = (
        {"model": small, "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}, {"type": "Prepend", "prepend": "▁"},
            {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
             "lowercase": True}]}},
        {"model": small, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": "Isolated", "invert": False},
            {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Isolated"},
            {"type": "WhitespaceSplit"}, {"type": "UnicodeScripts"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]}},
        {"model": unigram, "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            {"type": "BPEDecoder", "suffix": "</w>"}, {"type": "WordPiece", "prefix": "##", "cleanup": True},
            {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}]}},
        {"model": {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
                   "max_input_chars_per_word": 100, "vocab": {"a": 0, "##b": 1}},
         "post_processor": {"type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
            {"type": "TemplateProcessing",
             "single": [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
             "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
             "special_tokens": {"a": {"id": "a", "ids": [0], "tokens": ["a"]}}}]}},
        {"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}, "added_tokens": [
            {"id": 5, "content": "<s>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": True,
             "special": True}], "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst",
             "stride": 0}, "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None,
             "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}},
    )  # fmt: skip
    found = [KINDS[kind]().to_str().encode() for kind in KINDS]
    return found + [json.dumps({"version": "1.0", **chain}).encode() for chain in chains]


def _tokenizer_config(folder: Path) -> Read:
    from tpiedge.model.template import ChatTemplate, has_template
    from tpiedge.model.tokenizer import Tokenizer

    (folder / "tokenizer.json").write_bytes(_tokenizer_seeds()[-1])

    def read(data: bytes) -> None:
        (folder / "tokenizer_config.json").write_bytes(data)
        tokenizer = Tokenizer.open(folder)
        if has_template(folder):
            ChatTemplate.open(folder, tokenizer.special_tokens)

    return read


PARSERS: Final = (
    Parser(
        "tokenizer", _tokenizer, _tokenizer_seeds, form=JSON,
        words=words_of("type Sequence normalizers pattern String Regex content .* ^ (?=.) NFD NFKD Nmt "
                     "Precompiled ByteLevel Replace Prepend byte_fallback fuse_unk dropout ignore_merges Fuse"),
    ),
    Parser(
        "tokenizer-config", _tokenizer_config, form=JSON,
        seeds=lambda: [b'{"bos_token":"<s>","eos_token":{"content":"</s>"},"add_bos_token":true,'
                       b'"chat_template":[{"name":"default","template":"{{ 1 }}"}]}',
                       b'{"added_tokens_decoder":{"401":{"content":"<a>","lstrip":true,"special":false}},'
                       b'"extra_special_tokens":["<b>",{"content":"<c>"}],"image_token":"<d>"}'],
        words=words_of("tool_use add_eos_token unk_token chat_template default extra_special_tokens normalized "
                       "additional_special_tokens added_tokens_decoder single_word rstrip __type"),
    ),
)  # fmt: skip
