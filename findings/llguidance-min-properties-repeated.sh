#!/usr/bin/env bash
# llguidance 1.9.1: "minProperties" counts a name that is written twice as two, so a model may end an object of at least
# two properties as {"a":1,"a":2}, which every JSON parser reads as one property and a validator of the same schema then
# refuses. A name of "properties" cannot be repeated, only one that "additionalProperties" allows.
#
# Seen: the repeated additional name taken, and refused by jsonschema 4.25.1; the repeated declared name refused.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1 jsonschema==4.25.1
"$folder/venv/bin/python" - <<'PYTHON'
import json
from importlib.metadata import version

import jsonschema
from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")


def takes(schema: object, text: str) -> bool:
    """Whether the schema's grammar matches the whole text."""
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


text = '{"a":1,"a":2}'
open_object = {"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}}
declared = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "integer"}}
found = {
    "additional name": takes(open_object, text),
    "declared name": takes(declared, text),
    "one name once": takes(open_object, '{"a":1}'),
    "valid for jsonschema": jsonschema.Draft202012Validator(open_object).is_valid(json.loads(text)),
}
print(version("llguidance"), version("jsonschema"), json.dumps(found))
assert found == {
    "additional name": True,
    "declared name": False,
    "one name once": False,
    "valid for jsonschema": False,
}, "llguidance behaves otherwise now"
PYTHON
