"""Keys that are given in a file, and taken away while the server runs."""

import logging

import httpx
import openai
import pytest

from tests.http.conftest import SECRET
from tpiedge.api.record_folder import RecordFolder


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


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("X-Api-Key", "sk-phone")], 200),
        ([("x-api-key", "sk-laptop")], 200),
        ([("X-Api-Key", "sk-phone"), ("Authorization", "Basic eDp5")], 200),
        ([("X-Api-Key", "sk-phone"), ("Authorization", "Bearer wrong")], 401),
        ([("X-Api-Key", "wrong"), ("Authorization", "Bearer sk-phone")], 200),
        ([("X-Api-Key", "sk-phone"), ("X-Api-Key", "sk-laptop")], 401),
        ([("X-Api-Key", "")], 401),
        ([("api-key", "sk-phone")], 200),
        ([("api-key", "sk-phone"), ("Authorization", "Basic eDp5")], 200),
        ([("api-key", "sk-phone"), ("Authorization", "Bearer wrong")], 401),
        ([("api-key", "sk-phone"), ("X-Api-Key", "wrong")], 401),
        ([("api-key", "wrong")], 401),
        ([("api-key", "sk-phone"), ("api-key", "sk-laptop")], 401),
        ([("X-Api-Key", SECRET)], 401),
    ],
)
def test_the_other_header_for_keys(serve, key_file, headers, status):
    answer = httpx.get(f"{serve(key_file=key_file).url}/v1/models", headers=headers)
    assert answer.status_code == status


def test_the_admin_secret_may_come_in_either_header(serve, key_file):
    url = f"{serve(key_file=key_file).url}/admin/nodes"
    assert httpx.get(url, headers={"X-Api-Key": SECRET}).status_code == 200
    assert httpx.get(url, headers={"X-Api-Key": "sk-phone"}).status_code == 401


@pytest.mark.parametrize("journal", [False, True])
def test_the_requests_of_a_key_are_one_client_s_wherever_they_come_from(serve, service, tmp_path, journal):
    service.script = lambda generation: generation.finish("stop")
    records = RecordFolder(tmp_path / "records", "pack") if journal else None
    server = serve(keys=("sk-phone", "sk-laptop"), records=records)
    asked = {}
    for name, own in (("sk-phone", "127.0.0.1"), ("sk-phone", "127.0.0.2"), ("sk-laptop", "127.0.0.1")):
        transport = httpx.HTTPTransport(local_address=own)
        headers = {"Authorization": f"Bearer {name}"}
        with httpx.Client(base_url=server.url, transport=transport, headers=headers) as client:
            for body in ({"prompt": "hi", "n": 2}, {"prompt": "hi"}):
                client.post("/v1/completions", json={"model": "babbler", **body}).raise_for_status()
        asked[name, own] = {service.generations.get(timeout=20).client for _ in range(3)}
    assert all(len(clients) == 1 for clients in asked.values())
    (phone,) = asked["sk-phone", "127.0.0.1"]
    assert asked["sk-phone", "127.0.0.2"] == {phone}
    assert asked["sk-laptop", "127.0.0.1"] != {phone}
    assert "sk-" not in phone
