"""A request finds kept beginnings of its own client's prompts alone, so that no client can guess another's."""

import hashlib

import httpx
import pytest

from tests.http.conftest import InstantTemplate, KnowingTemplate
from tpiedge.api.keys import add_key, revoke_key
from tpiedge.errors import UserError
from tpiedge.kv.pages import NameKeys, PagePool
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
    pool = PagePool(200, PAGE, NameKeys(b"key", b"key"))

    def script(generation):
        ids, scope = generation.request.prompt_ids, generation.request.scope
        names = [*pool.names(ids, pool.scope_name(scope))]
        found = pool.find(names[: (len(ids) - 1) // PAGE])
        for name in names:
            pool.publish(pool.allocate(), name)
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


def request_of(serve, caching, headers, **options):
    server = serve(**options)
    httpx.post(f"{server.url}/v1/completions", json=COMPLETION, headers=headers).raise_for_status()
    return caching.generations.get(timeout=60).request


def test_kept_scopes_survive_restarts_of_the_server(serve, caching):
    def scope(number, secret=b"s" * 32):
        request = request_of(serve, caching, key(number), keys=KEYS, scope_key=secret)
        assert request.keep_context
        return request.scope

    assert scope(0) == scope(0)
    assert len({scope(0), scope(1), scope(0, b"t" * 32)}) == 3


@pytest.mark.parametrize("keys", [KEYS, ()])
def test_shared_prefixes_are_kept_for_all_clients(serve, caching, keys):
    options = {"keys": keys, "share_prefixes": True, "scope_key": b"s" * 32}
    request = request_of(serve, caching, key(0), **options)
    assert (request.scope, request.keep_context) == ("", True)


def test_revoked_key_made_anew_is_another_scope(serve, caching, tmp_path):
    """Kept pages of the revoked key are never found again."""
    file, scopes = tmp_path / "keys", []
    for _ in range(2):
        value = add_key(file, "phone")
        request = request_of(serve, caching, {"X-Api-Key": value}, key_file=file, scope_key=b"s" * 32)
        scopes.append(request.scope)
        revoke_key(file, "phone")
    assert scopes[0] != scopes[1]


def test_nothing_is_kept_unless_the_master_keeps_context(serve, caching):
    assert not request_of(serve, caching, {}).keep_context
    assert not request_of(serve, caching, key(0), keys=KEYS).keep_context
    assert not request_of(serve, caching, {}, share_prefixes=True).keep_context


def test_chats_with_the_same_system_prompt_share_it(serve, caching):
    """Two chats agree about how many tokens they share, whatever their first message is."""
    caching.template = InstantTemplate(
        "{% for one in messages %}<{{ one.role }}>{{ one.content }}{% endfor %}"
    )
    server = serve(**{"keys": KEYS, "scope_key": b"s" * 32})
    system, requests = {"role": "system", "content": PROMPT}, []
    for content in ("Hello", "0 or 1?", "00"):
        body = {**CHAT, "messages": [system, {"role": "user", "content": content}, *CHAT["messages"]]}
        httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=key(0)).raise_for_status()
        requests.append(caching.generations.get(timeout=60).request)
    shared = {one.prompt_ids[: one.preamble_tokens] for one in requests}
    assert len(shared) == 1
    assert caching.tokenizer.decode(shared.pop()).endswith(f"{PROMPT}<user>")
    httpx.post(f"{server.url}/v1/chat/completions", json=CHAT, headers=key(0)).raise_for_status()
    assert caching.generations.get(timeout=60).request.preamble_tokens == 0, "nothing to share"


def test_clients_known_by_their_address_have_no_kept_context(serve):
    with pytest.raises(UserError, match="--keep-context tells clients apart by API keys"):
        serve(scope_key=b"s" * 32)


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
