#!/usr/bin/env bash
# llguidance 1.9.1: a JSON schema with "uniqueItems": false, which is the default of JSON Schema and constrains nothing,
# is refused as "uniqueItems": true is, and so is a oneOf of two references to objects that differ by a constant
# (what pydantic writes for a discriminated union), while the same oneOf written in place is taken.
#
# Seen: three errors that name uniqueItems, uniqueItems and oneOf; no error for the oneOf in place and for a schema
# without the word.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check llguidance==1.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import json
from importlib.metadata import version

from llguidance import LLMatcher


def error(schema: object) -> str:
    """What the validation of a schema says; "" where it is taken."""
    return LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema)))


def kind(name: str) -> dict[str, object]:
    return {"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"]}


items = {"type": "array", "items": {"type": "integer"}}
references = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": kind("a"), "b": kind("b")}}
found = {
    "without": error(items),
    "false": error(items | {"uniqueItems": False}),
    "true": error(items | {"uniqueItems": True}),
    "in place": error({"oneOf": [kind("a"), kind("b")]}),
    "references": error(references),
}
print(version("llguidance"), json.dumps(found, indent=1))
assert not found["without"] and not found["in place"], "llguidance behaves otherwise now"
assert "uniqueItems" in found["false"] and "uniqueItems" in found["true"], "llguidance behaves otherwise now"
assert "oneOf" in found["references"], "llguidance behaves otherwise now"
PYTHON
