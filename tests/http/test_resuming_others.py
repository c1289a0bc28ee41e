import httpx
import openai
import pytest

from tests.http.conftest import answers
from tests.http.test_resuming import LIMIT_S, PACK, connect, left, wait_until
from tpiedge.api.limits import Limits
from tpiedge.api.records import RecordFolder

CHAT = [{"role": "user", "content": "hi"}]
RESPONSE = {"model": "babbler", "input": "hi"}
MESSAGE = {"model": "babbler", "messages": CHAT, "max_tokens": 99}
WHERE = {"/v1/responses": RESPONSE, "/v1/messages": MESSAGE}


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


def test_openai_client_resumes_a_response(keep, service, folder):
    """The client counts the events of a response from 0."""
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
        assert client.responses.retrieve(name).output_text == text
        client.responses.delete(name)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(name)
        wait_until(lambda: not left(folder))


def test_anthropics_client_reads_a_numbered_stream(keep, service):
    import anthropic

    text = answers(service, "Once upon a time")
    with (
        anthropic.Anthropic(base_url=keep().url, api_key="none", max_retries=0, timeout=LIMIT_S) as client,
        client.messages.stream(model="babbler", max_tokens=99, messages=CHAT) as stream,
    ):
        assert stream.get_final_text() == text
