"""Every API's own client understands what it gets. What that is to the byte, golden tables say."""

import json

import httpx
import ollama
import openai
import pytest

from tests.http.conftest import answers
from tpiedge.api.limits import Limits
from tpiedge.api.parsed import tokens_in
from tpiedge.errors import PeerLost

CHAT = [{"role": "user", "content": "hi"}]
VECTOR, UNIT = (0.0, 3.0, -4.0, 0.0), [0.0, 0.6, -0.8, 0.0]


def messages(url, stream):
    import anthropic

    with anthropic.Anthropic(base_url=url, api_key="key", max_retries=0) as client:
        body = {"model": "babbler", "max_tokens": 32, "messages": CHAT}
        if not stream:
            return client.messages.create(**body).content[0].text
        with client.messages.stream(**body) as events:
            return events.get_final_text()


def responses(url, stream):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client:
        if not stream:
            return client.responses.create(model="babbler", input="hi").output_text
        with client.responses.stream(model="babbler", input="hi") as events:
            assert [event.sequence_number for event in events][:3] == [0, 1, 2]
            return events.get_final_response().output_text


def azure(url, stream, deployment=None):
    more = {"azure_deployment": deployment, "api_version": "2024-10-21"}
    with openai.AzureOpenAI(azure_endpoint=url, api_key="key", max_retries=0, **more) as client:
        model = "gpt-4o" if deployment else "babbler"
        found = client.chat.completions.create(model=model, messages=CHAT, stream=stream)
        if not stream:
            return found.choices[0].message.content
        return "".join(chunk.choices[0].delta.content or "" for chunk in found)


def deployed(url, stream):
    return azure(url, stream, "babbler")


def llama(url, stream):
    with ollama.Client(host=url, headers={"Authorization": "Bearer key"}, trust_env=False) as client:
        shown = client.show("babbler:latest")
        assert shown.capabilities == ["completion", "embedding"]
        assert "temperature 0.7\ntop_p 0.9\ntop_k 40\n" in shown.parameters
        assert [model.model for model in client.list().models] == ["babbler"]
        found = client.chat(model="babbler:latest", messages=CHAT, stream=stream)
        return "".join(part.message.content for part in (found if stream else [found]))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ask", [messages, responses, azure, deployed, llama])
def test_every_api_client_reads_the_text(serve, service, ask, stream):
    text, say = answers(service, "Once upon a time"), service.script
    service.script = lambda generation: (generation.pause("the worker ann is lost"), say(generation))
    assert ask(serve(keys=["key"]).url, stream) == text


def test_unknown_azure_deployment_is_refused(serve):
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        azure(serve().url, False, "other")


def test_ollama_client_reads_embeddings(serve, service):
    def script(generation):
        generation.embed(*VECTOR)
        generation.finish("stop")

    service.script = script
    with ollama.Client(host=serve().url, trust_env=False) as client:
        assert client.embed(model="babbler", input=["a", "b"]).embeddings == [pytest.approx(UNIT)] * 2
        assert client.embeddings(model="babbler", prompt="a").embedding == pytest.approx(VECTOR)


def test_embeddings_of_many_texts_keep_their_order(client, service):
    waiting = []

    def script(generation):
        waiting.append(generation)
        if len(waiting) == 4 or "-39" in generation.request.id:
            for one in reversed(waiting):
                one.embed(float(one.request.id.rpartition("-")[2]), 1.0)
                one.finish("stop")
            waiting.clear()

    service.script = script
    answer = client.embeddings.create(model="babbler", input=[f"text {n}" for n in range(40)])
    ratios = [one.embedding[0] / one.embedding[1] for one in answer.data]
    assert ratios == pytest.approx(list(range(40)), rel=1e-5)
    assert [one.index for one in answer.data] == list(range(40))


def test_embeddings_failing_midway_are_invalid_json(serve, service):
    body = {"model": "babbler", "input": ["a", "b"]}
    with httpx.stream("POST", f"{serve().url}/v1/embeddings", json=body, trust_env=False) as answer:
        first, second = (service.generations.get(timeout=20) for _ in range(2))
        first.embed(*VECTOR)
        first.finish("stop")
        said, parts = b"", answer.iter_raw()
        while b"index" not in said:
            said += next(parts)
        second.fail(PeerLost(1, "the work", "gone"))
        rest = []
        with pytest.raises(httpx.RemoteProtocolError):
            rest.extend(parts)
    with pytest.raises(ValueError):
        json.loads(said + b"".join(rest))


@pytest.mark.parametrize(
    ("path", "body", "sign"),
    [
        ("/v1/chat/completions", {"messages": CHAT, "stream": True}, ": ping"),
        ("/v1/messages", {"messages": CHAT, "max_tokens": 9, "stream": True}, "event: ping"),
        ("/v1/responses", {"input": "hi", "stream": True}, ": ping"),
        ("/api/chat", {"messages": CHAT}, '"content": ""}, "done": false}'),
        ("/v1/embeddings", {"input": "a"}, ""),
    ],
)
def test_waiting_client_gets_keep_alives_in_every_api(serve, service, path, body, sign):
    url = f"{serve(limits=Limits(ping_s=0.05)).url}{path}"
    with httpx.stream("POST", url, json={"model": "babbler"} | body, trust_env=False) as answer:
        lines = answer.iter_lines()
        assert any(line.endswith(sign) for line in lines)
        generation = service.generations.get(timeout=20)
        if path == "/v1/embeddings":
            generation.embed(*VECTOR)
        generation.finish("stop")
        assert [*lines]


@pytest.mark.parametrize("said", ["once upon a time " * 10_000, "\n".join(["hi"] * 30_000), "x" * 70_000])
def test_tokens_of_an_oversized_prompt_are_counted(serve, service, said):
    """Claude Code shortens a conversation by this count."""
    import anthropic

    with anthropic.Anthropic(base_url=serve().url, api_key="none", max_retries=0) as client:
        found = client.messages.count_tokens(model="babbler", messages=[{"role": "user", "content": said}])
        right = len(service.tokenizer.encode(f"<user>{said}", add_special=False))
        assert abs(found.input_tokens - right) <= 8
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as refused:
            client.messages.create(
                model="babbler", messages=[{"role": "user", "content": said}], max_tokens=1
            )
    assert f"{found.input_tokens} tokens > {service.max_sequence} maximum" in str(refused.value)
    long = "once upon a time " * 200_000
    each = len(service.tokenizer.encode(" once upon a time", add_special=False))
    assert tokens_in(long, service.model()) == pytest.approx(200_000 * each, rel=0.02)


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded", "application/octet-stream"])
def test_ollama_api_accepts_curl_requests_but_not_web_forms(serve, service, kind):
    """The manual of Ollama shows `curl -d`, which calls everything a form."""
    server, body = serve(), json.dumps({"model": "babbler", "messages": CHAT, "stream": False})

    def post(**headers):
        return httpx.post(
            f"{server.url}/api/chat", content=body, headers={"Content-Type": kind, **headers}, trust_env=False
        )

    text = answers(service, "Once")
    assert post().json()["message"]["content"] == text
    service.generations.get(timeout=20)
    assert post(Origin=server.url).status_code == 415
    assert post(Origin="null").status_code == 403
    assert post(**{"Sec-Fetch-Site": "none"}).status_code == 415
    assert service.generations.empty()


@pytest.mark.parametrize(("ask", "instead"), [
    (lambda client: client.pull("llama3.2"), "tpiedge pull NAME"),
    (lambda client: client.delete("babbler"), "tpiedge rm NAME"),
    (lambda client: client.copy("babbler", "mine"), "tpiedge master MODEL --alias NAME"),
    (lambda client: client.create("mine", from_="babbler"), "tpiedge import-gguf FILE"),
    (lambda client: client.push("babbler"), "tpiedge unpack"),
    (lambda client: client.create_blob(__file__), "tpiedge import-gguf FILE"),
], ids=["pull", "delete", "copy", "create", "push", "blobs"])  # fmt: skip
def test_ollamas_client_hears_what_to_type_instead(serve, ask, instead):
    with (
        ollama.Client(host=serve().url, trust_env=False) as client,
        pytest.raises(ollama.ResponseError) as raised,
    ):
        ask(client)
    assert raised.value.status_code == 501
    assert instead in raised.value.error
