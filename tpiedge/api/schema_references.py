"""What the references of a JSON schema name: by pointer, by anchor, and relative to any `$id`. Pure."""

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

NAMED: Final = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies")
"""The keywords whose keys are names, not words of JSON Schema, and whose values are schemas."""
DATA: Final = ("const", "enum", "default", "examples")
"""The keywords whose values are no schemas."""
_MAX_REFERENCE: Final = 512
#: Each address within others is longer than they are.
_MAX_ADDRESS: Final = 2048
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")


class SchemaReferences:
    """Resolves the references of one schema. A part of it with an `$id` is a document of its own."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._documents: dict[str, object] = {"": root}
        self._anchors: dict[tuple[str, str], object] = {}
        self._bases: dict[int, str] = {}
        left: list[tuple[dict[str, Any], str]] = [(root, "")]
        while left:
            schema, base = left.pop()
            base = self._note(schema, base)
            left += ((part, base) for part in _parts(schema))

    def target(self, reference: str, schema: dict[str, Any]) -> object:
        """The part that the reference, which stands in `schema`, names; None where there is none."""
        if len(reference) > _MAX_REFERENCE:
            return None
        base = self._bases.get(id(schema), "")
        address, fragment = urldefrag(reference)
        document = _joined(base, address) if address else base
        fragment = unquote(fragment)
        if document not in self._documents:
            return None
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((document, fragment))
        return _at(self._documents[document], fragment)

    def _note(self, schema: dict[str, Any], base: str) -> str:
        """Remembers the names of the schema. Returns the address that its references are relative to."""
        identity = schema.get("$id")
        if isinstance(identity, str) and len(identity) <= _MAX_REFERENCE:
            address, fragment = urldefrag(identity)
            if address:
                base = _joined(base, address)
                self._documents.setdefault(base, schema)
            if fragment:  # an anchor, as until draft 7
                self._anchors.setdefault((base, fragment), schema)
        for word in _ANCHORS:
            if isinstance(schema.get(word), str):
                self._anchors.setdefault((base, schema[word]), schema)
        self._bases[id(schema)] = base
        return base


def _joined(base: str, address: str) -> str:
    try:
        joined = urljoin(base, address)
    except ValueError:
        return address
    return joined if len(joined) <= _MAX_ADDRESS else address


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The objects within the schema that may be schemas."""
    for key, value in schema.items():
        if key in DATA:
            continue
        inner = [value]
        if isinstance(value, dict) and key in NAMED:
            inner = [*value.values()]
        while inner:
            part = inner.pop()
            if isinstance(part, list):
                inner += part
            elif isinstance(part, dict):
                yield part


def _at(document: object, pointer: str) -> object:
    """The part of the document at a JSON pointer."""
    found = document
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and key.isascii() and len(key) < 9:
            found = found[int(key)] if int(key) < len(found) else None
        else:
            return None
    return found
