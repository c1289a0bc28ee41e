"""The document of the API has every route and every field that is read, and nothing else."""

import json
import re
from collections import defaultdict

import httpx
import pytest

from tpiedge.api import openapi_fields as described
from tpiedge.api import openapi_others as others
from tpiedge.api.app import Api
from tpiedge.api.fields import BodyFields
from tpiedge.api.guard import Guard
from tpiedge.api.keys import ApiKeys
from tpiedge.api.limits import Limits
from tpiedge.api.openapi import document
from tpiedge.testing.service import WIDTH

INDEX = re.compile(r"\[\d+\]")
METHODS = {"get", "post", "delete"}
CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
FILE = {"filename": "a.txt", "file_data": "data:text/plain;base64,eA=="}
MESSAGES = [
    {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "file", "file": FILE}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "x"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "x", "tool_call_id": "a"},
]
STREAM = {"stream": True, "stream_options": {}}
#: Of each route with a body the fields that the document has, and bodies that together lead to all fields being read.
BODIES = {
    "/v1/completions": (described.COMPLETION, [{"model": "babbler", "prompt": "x", **STREAM}]),
    "/v1/chat/completions": (
        described.CHAT,
        [{"model": "babbler", "messages": MESSAGES, "chat_template_kwargs": {"thinking": True}, **STREAM}],
    ),
    "/v1/embeddings": (described.EMBEDDINGS, [{"model": "babbler", "input": "x"}]),
    "/v1/responses": (others.RESPONSES, [{"model": "babbler", "input": "x"}]),
    "/v1/messages": (
        others.ANTHROPIC,
        [{"model": "babbler", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}],
    ),
    "/v1/messages/count_tokens": (
        {name: field for name, field in others.ANTHROPIC.items() if name != "max_tokens"},
        [{"model": "babbler", "messages": [{"role": "user", "content": "x"}]}],
    ),
    "/api/chat": (
        others.OLLAMA_CHAT,
        [{"model": "babbler", "messages": [{"role": "user", "content": "x"}], "tools": []}],
    ),
    "/api/generate": (others.OLLAMA_GENERATE, [{"model": "babbler", "prompt": "x"}]),
    "/api/embed": (others.OLLAMA_EMBED, [{"model": "babbler", "input": "x"}]),
    "/api/embeddings": (others.OLLAMA_EMBEDDINGS, [{"model": "babbler", "prompt": "x"}]),
    "/api/show": (others.SHOW, [{"model": "babbler"}]),
    "/tokenize": (described.TOKENIZE, [{"prompt": "x"}, {"content": "x"}, {"messages": MESSAGES}]),
    "/detokenize": (described.DETOKENIZE, [{"tokens": [1]}]),
}
OPENAI = ("/v1/completions", "/v1/chat/completions", "/tokenize")
#: Objects within the bodies of these.
NESTED = {
    "messages[]": described.SCHEMAS["message"],
    "messages[].content[]": described.SCHEMAS["part"],
    "messages[].content[].file": described.SCHEMAS["file"],
    "messages[].tool_calls[]": described.SCHEMAS["tool_call"],
    "messages[].tool_calls[].function": described.SCHEMAS["tool_call"]["properties"]["function"],
    "stream_options": described.CHAT["stream_options"],
    "chat_template_kwargs": described.CHAT["chat_template_kwargs"],
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


class Read:
    """Names of the fields that are read and have an effect, by the place of their object ("" for the body)."""

    def __init__(self):
        self.names = defaultdict(set)
        self._body = None
        self.refusing = False

    def begin(self):
        """The next body. What it is translated into is another one."""
        self._body = None

    def note(self, fields, key):
        noted = fields._request  # which the objects of one body share
        self._body = noted if self._body is None else self._body
        if noted is self._body and not self.refusing:
            self.names[INDEX.sub("[]", fields.name("")).rstrip(".")].add(key)


@pytest.fixture
def read(monkeypatch):
    found, raw, unsupported = Read(), BodyFields.raw, BodyFields.unsupported

    def note(self, key):
        found.note(self, key)
        return raw(self, key)

    def refuse(self, *words):
        found.refusing = True
        try:
            unsupported(self, *words)
        finally:
            found.refusing = False

    monkeypatch.setattr(BodyFields, "raw", note)
    monkeypatch.setattr(BodyFields, "unsupported", refuse)
    return found


@pytest.mark.parametrize("path", BODIES)
def test_the_fields_that_are_read_are_in_it_and_no_others(serve, service, read, path):
    def script(generation):
        if "embed" in path:
            generation.embed(*[1.0] * WIDTH)
        generation.finish("stop")

    fields, bodies = BODIES[path]
    service.script = script
    url = serve().url
    for body in bodies:
        read.begin()
        assert httpx.post(f"{url}{path}", json=body).status_code == 200
    assert read.names.pop("") == set(fields)
    if path in OPENAI:
        for name, keys in read.names.items():
            assert keys <= set(NESTED[name]["properties"]), name


def test_every_body_is_compared():
    posted = {path for path, entry in document()["paths"].items() if "post" in entry}
    assert {path for path in posted if not path.startswith("/admin/")} == set(BODIES)


def test_objects_in_bodies_have_the_fields_that_are_read(serve, service, read):
    service.script = lambda generation: generation.finish("stop")
    for body in BODIES["/v1/chat/completions"][1]:
        assert httpx.post(f"{serve().url}/v1/chat/completions", json=body).status_code == 200
    assert {name: set(schema["properties"]) for name, schema in NESTED.items()} == {
        name: keys for name, keys in read.names.items() if name
    }
