"""Answers of other APIs that survive their connections and their server."""

import anthropic
import httpx
import openai
import pytest

from tests.http.conftest import answers
from tests.http.test_resuming import LIMIT_S, PACK, connect, left, wait_until, wait_until_forgotten
from tpiedge.api.limits import Limits
from tpiedge.api.record_folder import RecordFolder

ASKED = [{"role": "user", "content": "hi"}]
RESPONSE = {"model": "babbler", "input": "hi"}
MESSAGE = {"model": "babbler", "messages": ASKED, "max_tokens": 99}
WHERE = {"/v1/responses": RESPONSE, "/v1/messages": MESSAGE}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "answers"


@pytest.fixture
def keep(serve, folder):
    return lambda **options: serve(records=RecordFolder(folder, PACK), limits=Limits(ping_s=0.2), **options)


def begun(http, service, server, path, ids, stream=True):
    """Asks, and ends the server after the tokens `ids`. Returns the answer's path, and the lines that came."""
    lines = []
    with http.stream("POST", path, json=WHERE[path] | {"stream": stream}) as answer:
        assert answer.headers["x-resumable"] == "yes"
        name = answer.headers["x-request-id"]
        generation = service.generations.get(timeout=LIMIT_S)
        generation.say(*ids)
        with pytest.raises(httpx.RemoteProtocolError):
            lines.extend(ended(answer, server, "delta" if stream else ""))
    return f"{path}/{name}", lines


def ended(answer, server, after):
    """The lines of the answer, whose server ends after the first one with `after` in it."""
    for line in answer.iter_lines():
        yield line
        if after in line:
            server.close()


def test_openais_client_goes_on_with_a_response(keep, service, folder):
    """By the numbers that events have there: the first one's is 0."""
    text = answers(service, "Once upon a time")
    ids = service.tokenizer.encode(text, add_special=False)
    service.script = lambda generation: None
    server = keep()
    with connect(server) as http:
        path, lines = begun(http, service, server, "/v1/responses", ids[:1])
    last = max(int(line.removeprefix("id: ")) for line in lines if line.startswith("id: "))

    def rest(generation):
        generation.say(*ids[generation.said :])
        generation.finish("stop")

    service.script = rest
    with openai.OpenAI(base_url=f"{keep().url}/v1", api_key="none", max_retries=0, timeout=LIMIT_S) as client:
        name = path.rpartition("/")[2]
        events = list(client.responses.retrieve(name, stream=True, starting_after=last - 1))
        assert [event.sequence_number for event in events] == list(range(last, last + len(events)))
        assert events[-1].response.output_text == text
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(name)
        wait_until(lambda: not left(folder))


@pytest.mark.parametrize("path", WHERE)
def test_a_whole_answer_is_collected(keep, service, folder, path):
    text = answers(service, "Once upon a time")
    ids = service.tokenizer.encode(text, add_special=False)
    service.script = lambda generation: None
    server = keep()
    with connect(server) as http:
        where, _ = begun(http, service, server, path, ids[:1], stream=False)

    def rest(generation):
        generation.say(*ids[generation.said :])
        generation.finish("stop")

    service.script = rest
    with connect(keep()) as http:
        found = http.get(where).json()
        wait_until_forgotten(http, folder)
    (content,) = found["content"] if path == "/v1/messages" else found["output"][0]["content"]
    assert content["text"] == text


@pytest.mark.parametrize("path", WHERE)
def test_who_wants_one_no_more_deletes_it(keep, service, folder, path):
    with connect(keep()) as http:
        with http.stream("POST", path, json=WHERE[path] | {"stream": True}) as answer:
            where = f"{path}/{answer.headers['x-request-id']}"
            deleted = http.delete(where).json()
            assert service.generations.get(timeout=LIMIT_S).cancelled.wait(LIMIT_S)
        assert (
            deleted["object"] == {"/v1/responses": "response", "/v1/messages": "message"}[path] + ".deleted"
        )
        missing = http.delete(where)
    assert missing.status_code == 404
    assert missing.json().get("type") == ("error" if path == "/v1/messages" else None)
    wait_until(lambda: not left(folder))


def test_anthropics_client_reads_a_numbered_stream(keep, service):
    text = answers(service, "Once upon a time")
    with (
        anthropic.Anthropic(base_url=keep().url, api_key="none", max_retries=0, timeout=LIMIT_S) as client,
        client.messages.stream(model="babbler", max_tokens=99, messages=ASKED) as stream,
    ):
        assert stream.get_final_text() == text


@pytest.mark.parametrize("given", ["", "-1", "x", "1.5"])
def test_what_is_no_number_of_an_event_is_refused(keep, given):
    with connect(keep()) as http:
        refused = http.get(f"/v1/responses/x?stream=true&starting_after={given}")
    assert refused.status_code == 400
    assert "starting_after" in refused.json()["error"]["message"]
