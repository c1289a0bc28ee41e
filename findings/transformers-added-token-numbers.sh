#!/usr/bin/env bash
# transformers 5.23.0: the numbers in added_tokens_decoder of tokenizer_config.json are not those that the tokens get.
# Where tokenizer.json does not have the tokens, they are added behind its vocabulary in the order of their numbers, and
# nothing is said. A model whose embedding has rows 700 and 950 for them reads other rows.
#
# Seen: a vocabulary of 3 tokens and added_tokens_decoder {"950": "<|a|>", "700": "<|b|>"} gives <|a|> the id 4 and
# <|b|> the id 3.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import json
import sys
from pathlib import Path

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

place = Path(sys.argv[1]) / "model"
place.mkdir()
tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "world": 2}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.save(str(place / "tokenizer.json"))
flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
config = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "[UNK]",
    "added_tokens_decoder": {"950": {"content": "<|a|>", **flags}, "700": {"content": "<|b|>", **flags}},
}
(place / "tokenizer_config.json").write_text(json.dumps(config))
found = transformers.AutoTokenizer.from_pretrained(place).convert_tokens_to_ids(["<|a|>", "<|b|>"])
print(transformers.__version__, found)
assert found == [4, 3], "transformers behaves otherwise now"
PYTHON
