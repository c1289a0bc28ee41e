#!/usr/bin/env bash
# llguidance 1.9.1: a JSON schema's whole numbers beyond 2**53 become the nearest double. {"const": 9007199254740993},
# valid JSON and exact in Python and in JSON Schema, compiles without an error, refuses 9007199254740993 and takes only
# 9007199254740992: a model that must repeat an identifier of 18 digits is made to write another one. The same holds for
# an enum, and a "maximum" of 9007199254740995 takes 9007199254740996.
#
# Seen: no error; the constant refused and its neighbour taken, for const and for enum; a number above the maximum taken.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import json
from importlib.metadata import version

from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")


def takes(schema: object, text: str) -> bool:
    """Whether the schema's grammar matches the whole text."""
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


wanted, nearest = "9007199254740993", "9007199254740992"
found = {
    "const": [takes({"const": int(wanted)}, text) for text in (wanted, nearest)],
    "enum": [takes({"enum": [int(wanted)]}, text) for text in (wanted, nearest)],
    "small const": [takes({"const": 4503599627370497}, text) for text in ("4503599627370497", "4503599627370496")],
    "above maximum": takes({"type": "integer", "maximum": 9007199254740995}, "9007199254740996"),
}
print(version("llguidance"), json.dumps(found))
assert found["small const"] == [True, False], "llguidance behaves otherwise now"
assert found["const"] == found["enum"] == [False, True], "llguidance behaves otherwise now"
assert found["above maximum"], "llguidance behaves otherwise now"
PYTHON
