"""Reads the files beside a model's tokenizer, as its own process does."""

import json
from pathlib import Path
from typing import Final

from tests.fuzz.forms import JSON
from tests.fuzz.parser import Parser, Read, words_of

_FILE: Final = {
    "version": "1.0",
    "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}},
    "added_tokens": [
        {"id": 5, "content": "<s>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": True,
         "special": True},
    ],
}  # fmt: skip


def _tokenizer_config(folder: Path) -> Read:
    from tpiedge.model.template import ChatTemplate, templates_of
    from tpiedge.model.tokenizer import Tokenizer

    (folder / "tokenizer.json").write_text(json.dumps(_FILE))

    def read(data: bytes) -> None:
        (folder / "tokenizer_config.json").write_bytes(data)
        tokenizer = Tokenizer.open(folder, here=True)
        if templates_of(folder):
            ChatTemplate.open(folder, tokenizer.special_tokens)

    return read


PARSERS: Final = (
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
