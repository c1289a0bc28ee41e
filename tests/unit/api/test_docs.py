import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest

from tpiedge.api.docs import docs_page
from tpiedge.api.openapi import document

PAGE = docs_page("version")
OPERATIONS = [
    (method, path, operation)
    for path, methods in document()["paths"].items()
    for method, operation in methods.items()
]


def fields(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yields names and schemas of all fields, however deep."""
    for key, one in schema.items() if isinstance(schema, dict) else ():
        if key == "properties":
            yield from one.items()
        for inner in one.values() if key == "properties" else one if isinstance(one, list) else [one]:
            yield from fields(inner)


def section(method: str, path: str) -> str:
    _, _, rest = PAGE.partition(f'<section id="{method}-{path}">')
    return rest.partition("</section>")[0]


@pytest.mark.parametrize(
    ("method", "path", "operation"), OPERATIONS, ids=[f"{one[0]} {one[1]}" for one in OPERATIONS]
)
def test_docs_show_every_field_with_type_and_default(
    method: str, path: str, operation: dict[str, Any]
) -> None:
    assert f'<a href="#{method}-{path}">' in PAGE
    shown = section(method, path)
    assert f"<h2>{method.upper()} <code>{path}</code></h2>" in shown
    lines = {
        unescape(line) for line in re.findall(r"<li>(<code>[^<]+</code>(?: <small>[^<]*</small>)?)", shown)
    }
    for parameter in operation["parameters"]:
        assert any(line.startswith(f"<code>{parameter['name']} ({parameter['in']})</code>") for line in lines)
    for name, schema in fields(operation.get("requestBody", {})):
        if "const" in schema:  # it heads the fields of its form
            assert f"{name} {json.dumps(schema['const'])}" in unescape(shown)
            continue
        mine = {line for line in lines if line.startswith(f"<code>{name}</code>")}
        assert mine, name
        kinds = schema.get("type", [])
        kind = next((one for one in ([kinds] if isinstance(kinds, str) else kinds) if one != "null"), "")
        default = f"default {json.dumps(schema['default'])}" if "default" in schema else ""
        assert any(kind in line and default in line for line in mine), (name, schema)


def test_docs_name_the_key_that_a_route_needs() -> None:
    assert "A code of POST /admin/link is needed as the bearer token." in section("post", "/admin/key")
    assert "The admin key is needed." in section("post", "/admin/link")
    assert "No key is needed." in section("get", "/health")


def test_docs_have_no_script_and_load_only_files_of_the_page() -> None:
    assert not re.search(r"<script|<style|\sstyle=|\son\w+=|://", PAGE)
    links = re.findall(r'(?:href|src)="([^"#]+)"', PAGE)
    assert sorted(links) == ["./", "openapi.json", "page/version/icon.svg", "page/version/style.css"]
