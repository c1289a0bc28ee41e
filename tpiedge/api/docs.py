"""GET /docs shows /openapi.json as HTML without scripts."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape

from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route, request_response

from tpiedge.api import fields as t
from tpiedge.api.openapi import document
from tpiedge.api.page import DOCS, PAGE_HEADERS, page_files


def docs_routes() -> list[Route]:
    async def send(_request: Request) -> Response:
        return HTMLResponse(docs_page(page_files()[0]), headers={**PAGE_HEADERS, "Cache-Control": "no-cache"})

    return [Route(DOCS, GZipMiddleware(request_response(send)), methods=["GET"])]


@cache
def docs_page(version: str) -> str:
    """Returns the OpenAPI document as HTML. `version`: the digest of `page_files`."""
    shown, about = document(), document()["info"]
    operations = [
        (f"{method}-{path}", method.upper(), path, operation)
        for path, methods in shown["paths"].items()
        for method, operation in methods.items()
    ]
    entries = "".join(
        f'<li><a href="#{escape(anchor)}">{method} {_code(path)}</a> {_said(one["summary"])}</li>'
        for anchor, method, path, one in operations
    )
    sections = "".join(
        f'<section id="{escape(anchor)}"><h2>{method} {_code(path)}</h2>{_operation(one)}</section>'
        for anchor, method, path, one in operations
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>API · tpiedge</title>'
        f'<link rel="icon" type="image/svg+xml" href="page/{version}/icon.svg">'
        f'<link rel="stylesheet" href="page/{version}/style.css"></head><body><main class="docs">'
        f"<h1>The API of tpiedge {escape(about['version'])}</h1><p>{_said(about['description'])}</p>"
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>. To chat: <a href="./">the page</a>.</p>'
        f'<nav aria-label="Routes"><ul>{entries}</ul></nav>{sections}</main></body></html>'
    )


def _operation(one: t.JsonSchema) -> str:
    key = "An API key is needed if the master has any."
    if "security" in one:
        names = {
            "admin": "The admin key is needed.",
            "code": "A code of POST /admin/link is needed as the bearer token.",
        }
        key = " ".join(names[name] for each in one["security"] for name in each) or "No key is needed."
    kinds = ", ".join(one["responses"]["200"]["content"])
    found = f"<p>{_said(one['summary'])}. {key} Answer: {kinds}.</p>"
    if parameters := one["parameters"]:
        rows = (
            _field(f"{each['name']} ({each['in']})", _told(each), each["required"]) for each in parameters
        )
        found += f"<h3>Parameters</h3><ul>{''.join(rows)}</ul>"
    if "requestBody" in one:
        schema = one["requestBody"]["content"]["application/json"]["schema"]
        found += f"<h3>Fields</h3>{_fields(schema)}"
    return found


def _told(parameter: t.JsonSchema) -> t.JsonSchema:
    return {**parameter["schema"], "description": parameter["description"]}


def _fields(form: t.JsonSchema) -> str:
    rows = (_field(name, one, name in form["required"]) for name, one in form["properties"].items())
    return f"<ul>{''.join(rows)}</ul>"


def _field(name: str, schema: t.JsonSchema, required: bool) -> str:
    facts = [_type(schema), *_limits(schema)]
    facts += ["required"] if required else []
    facts += [f"default {json.dumps(schema['default'])}"] if "default" in schema else []
    inner = "".join(
        f"<details><summary>{_said(label or 'Fields')}</summary>{_fields(form)}</details>"
        for label, form in _forms(schema).items()
    )
    words = f" {_said(schema['description'])}" if schema.get("description") else ""
    small = f" <small>{escape(', '.join(filter(None, facts)))}</small>" if any(facts) else ""
    return f"<li>{_code(name)}{small}{words}{inner}</li>"


def _type(schema: t.JsonSchema) -> str:
    if isinstance(schema, t.Unsupported) or schema.get("type") == "null":
        return ""
    if "const" in schema or "enum" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return " or ".join(json.dumps(one) for one in values if one is not None)
    given = schema.get("type", [])
    kinds = [one for one in ([given] if isinstance(given, str) else given) if one != "null"]
    found = [
        f"array of {_type(schema['items'])}" if one == "array" and "items" in schema else one for one in kinds
    ]
    found += [_type(one) for one in schema.get("anyOf", ())]
    return " or ".join(dict.fromkeys(filter(None, found))) or "any value"


def _limits(schema: t.JsonSchema) -> Iterator[str]:
    if "minimum" in schema:
        yield (
            f"{schema['minimum']} to {schema['maximum']}"
            if "maximum" in schema
            else f"from {schema['minimum']}"
        )
    if "maxLength" in schema:
        yield f"{schema.get('minLength', 0)} to {schema['maxLength']} characters"
    if "maxItems" in schema:
        yield f"at most {schema['maxItems']}"


def _forms(schema: t.JsonSchema) -> Mapping[str, t.JsonSchema]:
    """Returns the forms of objects that a value may hold, keyed by their constant fields. Equal forms are joined."""
    labels: dict[str, list[str]] = {}
    found: dict[str, t.JsonSchema] = {}
    for form in _objects(schema):
        tags = {name: one["const"] for name, one in form["properties"].items() if "const" in one}
        rest = {name: one for name, one in form["properties"].items() if name not in tags}
        mark = json.dumps([rest, [*tags]])
        labels.setdefault(mark, []).extend(f"{name} {json.dumps(value)}" for name, value in tags.items())
        found.setdefault(mark, {"properties": rest, "required": form["required"]})
    return {", ".join(labels[mark]): form for mark, form in found.items() if form["properties"]}


def _objects(schema: t.JsonSchema) -> Iterator[t.JsonSchema]:
    if "properties" in schema:
        yield schema
    for one in (*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())):
        yield from _objects(one)


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _said(text: str) -> str:
    """Escapes a text in which code stands between backticks."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
