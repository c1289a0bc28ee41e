import logging
import socket

import httpx
import openai
import pytest

from tests.http.conftest import SECRET, wait_until
from tpiedge.api.limits import Limits


def client_of(server, key):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=20)


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text("phone: sk-phone\nlaptop: sk-laptop\n")
    return path


def test_a_revoked_key_is_refused_and_its_answer_goes_on(serve, service, key_file, caplog):
    caplog.set_level(logging.DEBUG)
    service.script = lambda generation: None
    server = serve(key_file=key_file)
    word = service.tokenizer.encode("one", add_special=False)
    with client_of(server, "sk-phone") as phone, client_of(server, "sk-laptop") as laptop:
        with phone.completions.create(model="babbler", prompt="hi", stream=True) as stream:
            generation = service.generations.get(timeout=20)
            generation.say(*word)
            chunks = iter(stream)
            text = next(chunks).choices[0].text
            key_file.write_text("laptop: sk-laptop\n")
            with pytest.raises(openai.AuthenticationError):
                phone.models.list()
            assert laptop.models.list().data[0].id == "babbler"
            generation.say(*word)
            generation.finish("stop")
            text += "".join(chunk.choices[0].text for chunk in chunks)
        assert text == service.tokenizer.decode([*word, *word])
        metrics = httpx.get(f"{server.url}/metrics", headers={"X-Api-Key": "sk-laptop"})
    assert metrics.status_code == 200
    for told in (metrics.text, caplog.text.replace("Authorization", "")):
        assert "sk-phone" not in told
        assert "sk-laptop" not in told


@pytest.mark.fault("H8", "each key is a client of its own: one floods, and another has its share and places")
def test_each_key_is_a_client_of_its_own(serve, service, key_file):
    service.script = lambda generation: generation.finish("stop")
    server = serve(key_file=key_file, limits=Limits(preparing=2))
    kinds = "Content-Type: application/json\r\nX-Api-Key: sk-phone\r\n"
    begun = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n{kinds}\r\n{{"
    with client_of(server, "sk-phone") as phone, client_of(server, "sk-laptop") as laptop:
        with socket.create_connection(server.address, 20) as slow:
            slow.sendall(begun.encode())
            wait_until(lambda: server._api._intake._places.used)
            with pytest.raises(openai.RateLimitError, match="1 of them yours"):
                phone.completions.create(model="babbler", prompt="hi")
            laptop.completions.create(model="babbler", prompt="hi")
        wait_until(lambda: not server._api._intake._places.used)
        phone.completions.create(model="babbler", prompt="hi")
    first, second = (service.generations.get(timeout=20).client for _ in range(2))
    assert first != second


def test_api_keys_are_accepted_in_other_headers(serve, key_file):
    key, api, bearer = "X-Api-Key", "api-key", "Authorization"
    good = [
        [(key, "sk-phone")],
        [(key, "sk-phone"), (bearer, "Basic eDp5")],
        [(key, "wrong"), (bearer, "Bearer sk-phone")],
        [(api, "sk-phone")],
    ]
    bad = [
        [(key, "sk-phone"), (bearer, "Bearer wrong")],
        [(key, "sk-phone"), (key, "sk-laptop")],
        [(key, "")],
        [(api, "sk-phone"), (key, "wrong")],
        [(api, "wrong")],
        [(api, "sk-phone"), (api, "sk-laptop")],
        [(key, SECRET)],
    ]
    with httpx.Client(base_url=serve(key_file=key_file).url) as http:
        for status, some in ((200, good), (401, bad)):
            for headers in some:
                assert http.get("/v1/models", headers=headers).status_code == status, headers
