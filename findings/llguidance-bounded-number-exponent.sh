#!/usr/bin/env bash
# llguidance 1.9.1: a bound takes the exponent away from a number. {"type": "number"} matches 1e5, 1E-3 and -0.0; the
# same with "minimum", "maximum" or "multipleOf" that all of these values keep matches digits and a point alone, so a
# model that writes physical constants as 6.62e-34 must write 34 zeros as soon as the schema says that they are positive.
#
# Seen: 1e5 and 6.62e-34 taken without a bound and refused with one; their long forms taken with it.
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


number = {"type": "number"}
texts = ("1e5", "6.62e-34", "100000", f"0.{'0' * 33}662")
schemas = {
    "unbounded": number,
    "minimum": number | {"minimum": 0},
    "maximum": number | {"maximum": 1e9},
    "exclusiveMinimum": number | {"exclusiveMinimum": 0},
}
found = {name: [takes(schema, text) for text in texts] for name, schema in schemas.items()}
print(version("llguidance"), json.dumps(found))
assert found.pop("unbounded") == [True, True, True, True], "llguidance behaves otherwise now"
assert all(taken == [False, False, True, True] for taken in found.values()), "llguidance behaves otherwise now"
PYTHON
