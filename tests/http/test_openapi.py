"""The document of the API has every route and every field that is read, and nothing else."""

import json
from collections import defaultdict

import httpx
import pytest

from tpiedge.api import openapi_fields as described
from tpiedge.api.app import Api
from tpiedge.api.fields import BodyFields
from tpiedge.api.guard import Guard
from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.openapi import document

METHODS = {"get", "post", "delete"}
BODIES = {
    "/v1/completions": {"model": "babbler", "prompt": "x", "stream": True, "stream_options": {}},
    "/v1/chat/completions": {
        "model": "babbler",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        "stream": True,
        "stream_options": {},
        "chat_template_kwargs": {"thinking": True},
    },
}
TEXTS = {
    "/tokenize": (
        described.TOKENIZE,
        [{"prompt": "x"}, {"content": "x"}, {"messages": BODIES["/v1/chat/completions"]["messages"]}],
    ),
    "/detokenize": (described.DETOKENIZE, [{"tokens": [1]}]),
}


def routes(service):
    """(path, method) of all but the page, which is no part of the API."""
    api = Api(service, Guard("127.0.0.1", ApiKeys(), "secret", 1000), Limits())
    try:
        for route in api.routes:
            path = route.path.replace(":path}", "}")
            if path != "/" and not path.startswith("/page/"):
                yield from ((path, method.lower()) for method in route.methods - {"HEAD"})
    finally:
        api.close(1)


def test_every_route_is_in_it_and_no_other(service):
    paths = document()["paths"]
    written = {(path, method) for path, entry in paths.items() for method in entry.keys() & METHODS}
    assert written == set(routes(service))


def test_it_is_served_and_needs_a_key_where_others_do(serve):
    served = httpx.get(f"{serve().url}/openapi.json")
    assert served.status_code == 200
    assert served.json() == json.loads(json.dumps(document()))
    assert httpx.get(f"{serve(keys=['k']).url}/openapi.json").status_code == 401


def test_every_reference_leads_somewhere():
    found = document()

    def walk(value):
        if isinstance(value, dict):
            if "$ref" in value:
                place = found
                for part in value["$ref"].removeprefix("#/").split("/"):
                    place = place[part]
            for one in value.values():
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)

    walk(found)


@pytest.fixture
def read(monkeypatch):
    """Names of the fields that are read and have an effect, by the place of their object ("" for the body)."""
    names = defaultdict(set)
    raw, unsupported = BodyFields.raw, BodyFields.unsupported
    refusing = []

    def note(self, key):
        if not refusing:
            names[self.name("").rstrip(".")].add(key)
        return raw(self, key)

    def refuse(self, *words):
        refusing.append(self)
        try:
            unsupported(self, *words)
        finally:
            refusing.pop()

    monkeypatch.setattr(BodyFields, "raw", note)
    monkeypatch.setattr(BodyFields, "unsupported", refuse)
    return names


def properties(schema):
    return set(schema["properties"])


@pytest.mark.parametrize(
    ("path", "fields"), [("/v1/completions", described.COMPLETION), ("/v1/chat/completions", described.CHAT)]
)
def test_the_fields_of_a_request_for_an_answer(serve, service, read, path, fields):
    service.script = lambda generation: generation.finish("stop")
    assert httpx.post(f"{serve().url}{path}", json=BODIES[path]).status_code == 200
    assert read[""] == set(fields)
    assert read["stream_options"] == properties(fields["stream_options"])
    if "messages" in fields:
        assert read["messages[0]"] == properties(described.SCHEMAS["message"])
        assert read["messages[0].content[0]"] == properties(described.SCHEMAS["part"])
        assert read["chat_template_kwargs"] == properties(fields["chat_template_kwargs"])


@pytest.mark.parametrize("path", TEXTS)
def test_the_fields_of_other_requests(serve, read, path):
    fields, bodies = TEXTS[path]
    url = serve().url
    for body in bodies:
        assert httpx.post(f"{url}{path}", json=body).status_code == 200
    assert read[""] == set(fields)
