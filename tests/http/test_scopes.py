"""A request finds kept beginnings of its own client's prompts alone, so that no client can guess another's."""

import hashlib

import httpx
import pytest

from tests.http.conftest import KnowingTemplate
from tpiedge.kv.pages import PagePool
from tpiedge.wire.requests import SCOPE_CHARACTERS

KEYS = ("sk-one", "sk-two")
PAGE = 4
PROMPT = "The secret of the house is that the key lies under the third stone from the left."
COMPLETION = {"model": "babbler", "prompt": PROMPT, "max_tokens": 2}
CHAT = {"model": "babbler", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}


def key(number):
    return {"Authorization": f"Bearer {KEYS[number]}"}


@pytest.fixture
def caching(service):
    """The cluster keeps what it has read, in rank 0's ledger of pages."""
    pool = PagePool(200, PAGE, b"key")

    def script(generation):
        ids, scope = generation.request.prompt_ids, generation.request.scope
        found = pool.find(ids, scope)
        before = pool.scope_name(scope)
        for start in range(0, len(ids) - PAGE + 1, PAGE):
            before = pool.publish(pool.allocate(), before, ids[start : start + PAGE])
        if generation.request.pooling != "none":
            generation.embed(1.0, 2.0, 3.0, 4.0)
        else:
            generation.say(5)
        generation.finish(cached=len(found) * PAGE)

    service.script = script
    service.template = KnowingTemplate()
    return service


@pytest.fixture
def ask(serve, caching):
    """Asks one server, and returns how many tokens of its prompt are said to be kept."""
    servers = {}

    def post(headers, *, source="127.0.0.1", body=COMPLETION, path="/v1/completions", **options):
        if not servers:
            servers["only"] = serve(**options)
        transport = httpx.HTTPTransport(local_address=source)
        with httpx.Client(base_url=servers["only"].url, transport=transport, timeout=60) as http:
            answer = http.post(path, json=body, headers=headers)
            answer.raise_for_status()
        return answer.json().get("usage", {}).get("prompt_tokens_details", {}).get("cached_tokens")

    return post


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.fault("H13", "the guess of another key has nothing cached")
def test_cached_prompts_are_not_shared_between_keys(ask, path):
    body = COMPLETION if path == "/v1/completions" else CHAT
    options = {"keys": KEYS, "path": path, "body": body}
    assert ask(key(0), **options) == 0
    kept = ask(key(0), **options)
    assert kept >= 2 * PAGE
    assert ask(key(1), **options) == 0, "a guess is not confirmed"
    assert ask(key(1), **options) == kept
    assert ask(key(0) | {"X-Forwarded-For": "9.9.9.9"}, **options) == kept, "a key is one client everywhere"
    assert ask({"X-Api-Key": KEYS[0]}, **options) == kept


def test_cache_scope_reveals_neither_key_nor_address(serve, caching):
    texts = []
    for _ in range(2):
        for options, headers in ((({"keys": KEYS}), key(0)), ({}, {})):
            server = serve(**options)
            httpx.post(f"{server.url}/v1/completions", json=COMPLETION, headers=headers).raise_for_status()
            texts.append(caching.generations.get(timeout=60).request.scope)
    assert len(set(texts)) == 4, "another server cannot tell that a client is the same one"
    for scope in texts:
        assert 0 < len(scope) <= SCOPE_CHARACTERS
        for known in (KEYS[0], "127.0.0.1"):
            assert known not in scope
            assert scope not in hashlib.sha256(known.encode()).hexdigest()


@pytest.mark.parametrize(
    "said", [{"X-Forwarded-For": "192.0.2.1"}, {"Forwarded": "for=192.0.2.1"}, {"X-Real-IP": "192.0.2.1"}]
)
def test_prompts_behind_an_untrusted_proxy_are_not_cached(ask, said):
    assert [ask(said) for _ in range(3)] == [0, 0, 0]
    assert ask({}) == 0, "nor with who asks without it"


@pytest.mark.fault(
    "H13", "only what a named proxy wrote is believed; where that is not known nothing is cached"
)
def test_client_behind_a_trusted_proxy_is_its_forwarded_address(ask):
    def said(*addresses):
        return {"X-Forwarded-For": ", ".join(addresses)}

    options = {"proxies": ["127.0.0.1", "198.51.100.0/24"]}
    assert ask(said("192.0.2.1"), **options) == 0
    assert ask(said("192.0.2.1")) > 0
    assert ask(said("192.0.2.2")) == 0
    assert ask(said("192.0.2.2", "192.0.2.1")) > 0, "what its client wrote before does not count"
    assert ask(said("192.0.2.1", "192.0.2.3")) == 0
    assert ask(said("192.0.2.1", "198.51.100.7")) > 0, "by way of another named one"
    assert ask(said("192.0.2.1"), source="127.0.0.2") == 0, "who is no named proxy cannot say so"
    assert [ask({}), ask({})] == [0, 0], "nor is anything known where the proxy says nothing"
