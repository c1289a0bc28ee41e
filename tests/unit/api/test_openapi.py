import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest

from tests.fakes.service import FakeService
from tests.http.conftest import DEMO, KnowingTemplate
from tests.unit.api.test_strange_requests import READERS, refusal_of
from tpiedge.api.fields import BodyFields
from tpiedge.api.guard import Guard
from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.lookups import LOOKUPS, looked_up
from tpiedge.api.ollama import ABSENT
from tpiedge.api.openapi import document
from tpiedge.api.parsed import ParsedRequest
from tpiedge.api.server import Api
from tpiedge.local.prepare import USUAL
from tpiedge.model.tokenizer import Tokenizer

METHODS: Final = {"get", "post", "delete"}
MESSAGES: Final = [{"role": "user", "content": "x"}]
SHOWN: Final = {"tokens": [1], "prompt": "x", "input": "x", "messages": MESSAGES, "max_tokens": 5}
#: With which other fields are read.
MORE: Final[dict[str, list[dict[str, Any]]]] = {
    "/tokenize": [{"prompt": "x"}, {"content": "x"}, {"messages": MESSAGES}],
    "/api/chat": [{"messages": MESSAGES}],
    "/api/generate": [{"prompt": "x"}],
    "/v1/chat/completions": [{"messages": MESSAGES, "stream": True, "stream_options": {}}],
}
OTHERS: Final[dict[str, Callable[..., Any]]] = {
    path: partial(looked_up, path) for path in LOOKUPS if path not in READERS
}


@pytest.fixture(scope="module")
def service() -> FakeService:
    return FakeService(Tokenizer.open(DEMO), KnowingTemplate(), vocab_size=2048)


def tables() -> dict[str, dict[str, Any]]:
    return {
        path: entry["post"]["requestBody"]["content"]["application/json"]["schema"]
        for path, entry in document()["paths"].items()
        if "requestBody" in entry.get("post", {}) and not path.startswith("/admin/")
    }


def test_openapi_lists_exactly_the_served_routes(service: FakeService) -> None:
    api = Api(service, Guard("127.0.0.1", ApiKeys(), "secret"), Limits())
    try:
        routed = {
            (route.path.replace(":path}", "}"), method.lower())
            for route in api.routes
            for method in route.methods - {"HEAD"}
            if route.path not in {"/", *ABSENT} and not route.path.startswith("/page/")
        }
    finally:
        api.close(1)
    paths = document()["paths"]
    assert routed == {(path, method) for path, entry in paths.items() for method in entry.keys() & METHODS}


def test_openapi_references_match_the_defined_responses() -> None:
    names = set(document()["components"]["responses"])
    written = json.dumps(document()).split('"$ref": "#/components/responses/')[1:]
    assert {one.partition('"')[0] for one in written} == names
    assert json.dumps(document()).count('"$ref"') == len(written)


@pytest.mark.parametrize("path", tables())
def test_every_documented_field_is_read(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A field that is read and not in it is a defect, which every test of that field finds."""
    table, read, get, nested = tables()[path]["properties"], set(), BodyFields.get, BodyFields.nested

    def noting(fields: BodyFields, key: str, default: Any = None) -> Any:
        read.update({key} if fields._table.keys() == table.keys() else ())
        return get(fields, key, default)

    def noting_nested(fields: BodyFields, key: str) -> Any:
        noting(fields, key)
        return nested(fields, key)

    monkeypatch.setattr(BodyFields, "get", noting)
    monkeypatch.setattr(BodyFields, "nested", noting_nested)
    needed = {key: SHOWN[key] for key in tables()[path]["required"] if key in SHOWN}
    for more in MORE.get(path, [{}]):
        assert refusal_of((READERS | OTHERS)[path], {**needed, **more}, service) is None
    unused = ("Has no effect", "is not supported")
    without = {key for key, schema in table.items() if schema.get("description", "").startswith(unused)}
    assert table.keys() - read - without == set()


@pytest.mark.parametrize("model", [None, "", "babbler:latest"], ids=["null", "empty", "Ollama's"])
@pytest.mark.parametrize("path", tables())
def test_model_may_be_missing(service: FakeService, path: str, model: str | None) -> None:
    table = tables()[path]
    assert "model" not in table["required"]
    fields = {key: SHOWN[key] for key in table["required"]} | MORE.get(path, [{}])[0]
    assert refusal_of((READERS | OTHERS)[path], {**fields, "model": model}, service) is None


def defaults(form: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields each documented default as fields of a request, such as {"options": {"top_k": 0}}."""
    for key, schema in form["properties"].items():
        if "default" in schema:
            yield {key: schema["default"]}
        elif (
            "properties" in schema and not schema["required"] and key != "stream_options"
        ):  # these need a stream
            yield from ({key: one} for one in defaults(schema))


@pytest.mark.parametrize("path", tables())
def test_documented_defaults_are_those_of_missing_fields(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda _: 1)
    monkeypatch.setattr(service, "usual_sampling", USUAL)
    table, read = tables()[path], (READERS | OTHERS)[path]

    def parsed(fields: dict[str, Any]) -> object:
        found = read(dict(fields), service)
        if isinstance(found[1], ParsedRequest):
            found = found[1]
            return replace(found, reply=replace(found.reply, echo=""))  # /v1/responses repeats what was given
        return found[0]  # a field that is given and not needed is reported as ignored

    fields = {key: SHOWN[key] for key in table["required"]} | MORE.get(path, [{}])[0]
    for key in ("stream", "stream_options"):
        fields.pop(key, None)
    usual = parsed(fields)
    for one in defaults(table):
        assert parsed(fields | one) == usual, one
