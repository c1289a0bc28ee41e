"""What Ollama's client gets."""

import json

import httpx
import ollama
import pytest

from tests.http.conftest import answers
from tests.http.test_embeddings import UNIT, VECTOR
from tpiedge.api.limits import Limits
from tpiedge.errors import PeerLost

ASKED = [{"role": "user", "content": "hi"}]
BILLION = 10**9


@pytest.fixture
def llama(serve):
    server = serve(limits=Limits(ping_s=0.2))
    with ollama.Client(host=server.url, trust_env=False) as client:
        yield client


def asked_of(service):
    request = service.generations.get(timeout=20).request
    return request, service.tokenizer.decode(request.prompt_ids, skip_special=False)


def test_the_model_is_found(llama, service):
    (model,) = llama.list().models
    assert model.model == "babbler"
    assert model.details.family == "llama"
    (running,) = llama.ps().models
    assert running.context_length == service.max_sequence
    for name in ("babbler", "babbler:latest"):
        shown = llama.show(name)
        assert shown.modelinfo["llama.context_length"] == service.max_sequence
        assert shown.capabilities == ["completion", "embedding"]
    with pytest.raises(ollama.ResponseError) as raised:
        llama.show("other")
    assert raised.value.status_code == 404


def test_every_name_is_in_the_list(llama, service):
    """LangChain's client looks there for the one that it asks for."""
    service.also_called = ("fast", "org/babbler")
    assert [model.model for model in llama.list().models] == ["babbler", "fast", "org/babbler"]
    (running,) = llama.ps().models
    assert running.model == "babbler"


def test_the_version_says_whose_api_it_is(serve):
    found = httpx.get(f"{serve().url}/api/version", trust_env=False).json()
    assert set(found) == {"version", "tpiedge"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat(llama, service, stream):
    text = answers(service, "Once upon a time")
    found = llama.chat(model="babbler:latest", messages=ASKED, stream=stream)
    parts = list(found) if stream else [found]
    assert "".join(part.message.content for part in parts) == text
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    last = parts[-1]
    assert (last.model, last.done_reason, last.message.role) == ("babbler", "stop", "assistant")
    request, prompt = asked_of(service)
    assert prompt == "<user>hi"
    assert last.prompt_eval_count == len(request.prompt_ids)
    assert last.eval_count == len(service.tokenizer.encode(text, add_special=False))
    assert 0 < last.prompt_eval_duration <= last.total_duration < 20 * BILLION
    assert 0 <= last.eval_duration <= last.total_duration


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("top", [None, 0, 2])
@pytest.mark.parametrize("how", ["chat", "generate", "raw"])
def test_the_scores_of_an_answer(llama, service, how, top, stream):
    text = answers(service, "Once upon a time")
    wanted = {"model": "babbler", "logprobs": True, "top_logprobs": top, "stream": stream}
    if how == "chat":
        found = llama.chat(messages=ASKED, **wanted)
    else:
        found = llama.generate(prompt="hi", raw=how == "raw", **wanted)
    parts = list(found) if stream else [found]
    scores = [score for part in parts for score in part.logprobs or ()]
    ids = service.tokenizer.encode(text, add_special=False)
    assert [score.token for score in scores] == [service.tokenizer.token_bytes(one).decode() for one in ids]
    assert [score.logprob for score in scores] == [-0.5] * len(ids)
    assert [len(score.top_logprobs) for score in scores] == [top or 0] * len(ids)
    if stream:
        assert all(len(part.logprobs or ()) < len(ids) for part in parts)


def test_no_scores_are_told_that_nobody_wants(llama, service):
    answers(service, "Once upon a time")
    assert llama.chat(model="babbler", messages=ASKED, logprobs=False, top_logprobs=0).logprobs is None
    with pytest.raises(ollama.ResponseError, match="'top_logprobs' needs 'logprobs'"):
        llama.generate(model="babbler", prompt="hi", top_logprobs=2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_text(llama, service, stream):
    text = answers(service, "Once upon a time")
    found = llama.generate(model="babbler", prompt="hi", system="Be brief.", stream=stream)
    parts = list(found) if stream else [found]
    assert "".join(part.response for part in parts) == text
    assert parts[-1].done
    assert asked_of(service)[1] == "<system>Be brief.<user>hi"


def test_a_raw_text_has_no_template(llama, service):
    answers(service, "x")
    llama.generate(model="babbler", prompt="hi", raw=True, options={"num_predict": 5})
    request, prompt = asked_of(service)
    assert prompt.strip().endswith("hi")
    assert "<user>" not in prompt
    assert request.max_tokens == 5


def test_options_are_sampling(llama, service):
    answers(service, "x")
    options = {
        "num_predict": 7, "temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.5, "seed": 9,
        "repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25, "stop": ["there"],
    }  # fmt: skip
    llama.chat(model="babbler", messages=ASKED, options=options, keep_alive="5m")
    request, _ = asked_of(service)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 3, 0.5)
    assert (sampling.seed, sampling.repetition_penalty) == (9, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, 0.25)
    assert request.max_tokens == 7


@pytest.mark.parametrize("limit", [None, -1, -2])
def test_without_a_limit_there_is_only_that_of_the_context(llama, service, limit):
    answers(service, "x")
    llama.chat(model="babbler", messages=ASKED, options=None if limit is None else {"num_predict": limit})
    request, _ = asked_of(service)
    assert request.max_tokens == service.max_sequence - len(request.prompt_ids)


def test_an_answer_that_is_cut_says_so(llama, service):
    def script(generation):
        generation.say(*service.tokenizer.encode("Once", add_special=False))
        generation.finish("length")

    service.script = script
    assert llama.chat(model="babbler", messages=ASKED).done_reason == "length"


def test_a_request_without_a_prompt_only_wants_the_model_in_memory(llama):
    for found in (llama.generate(model="babbler"), llama.chat(model="babbler", messages=[])):
        assert (found.done, found.done_reason) == (True, "load")


@pytest.mark.parametrize(
    ("path", "fields", "names"),
    [
        ("generate", {"prompt": "x", "raw": True, "system": "S", "think": True}, "keep_alive, system, think"),
        ("generate", {"prompt": "x", "raw": True, "system": "", "think": False}, "keep_alive"),
        ("generate", {"prompt": "x", "system": "S", "think": True}, "keep_alive"),
        ("generate", {"color": 1, "options": {"num_ctx": 9}}, "options.num_ctx, keep_alive, color"),
        ("chat", {"messages": [], "color": 1}, "keep_alive, color"),
        ("show", {"system": "S", "color": 1}, "system, keep_alive, color"),
    ],
)
def test_what_has_no_effect_is_told(serve, service, caplog, path, fields, names):
    answers(service, "x")
    asked = {"model": "babbler", "keep_alive": "5m", **fields}
    answer = httpx.post(f"{serve().url}/api/{path}", json=asked, trust_env=False)
    assert answer.status_code == 200
    assert set(answer.headers["x-ignored-fields"].split(", ")) == set(names.split(", "))
    assert len(caplog.records) == len(names.split(", "))


def test_a_model_without_a_template_has_no_use_for_a_system_prompt(serve, service):
    service.template = None
    answers(service, "x")
    asked = {"model": "babbler", "prompt": "x", "system": "S"}
    answer = httpx.post(f"{serve().url}/api/generate", json=asked, trust_env=False)
    assert answer.headers["x-ignored-fields"] == "system"


def test_what_a_model_was_called_by_in_older_requests_is_no_vain_field(serve):
    answer = httpx.post(f"{serve().url}/api/show", json={"name": "babbler"}, trust_env=False)
    assert (answer.status_code, answer.headers.get("x-ignored-fields")) == (200, None)


@pytest.mark.parametrize("path", ["embed", "embeddings"])
@pytest.mark.parametrize(("given", "pooled"), [({}, "last"), ({"pooling": "mean"}, "mean")])
def test_embeddings_are_pooled_as_the_model_says(serve, service, path, given, pooled):
    asked = []

    def script(generation):
        asked.append(generation.request.pooling)
        generation.embed(*VECTOR)
        generation.finish("stop")

    service.script, service.pooling = script, "last"
    body = {"model": "babbler", "input" if path == "embed" else "prompt": "a", **given}
    assert httpx.post(f"{serve().url}/api/{path}", json=body).status_code == 200
    assert asked == [pooled]


def test_embeddings(llama, service):
    def script(generation):
        generation.embed(*VECTOR)
        generation.finish("stop")

    service.script = script
    assert llama.embed(model="babbler", input="a").embeddings == [pytest.approx(UNIT)]
    assert llama.embed(model="babbler", input=["a", "b"]).embeddings == [pytest.approx(UNIT)] * 2
    assert llama.embeddings(model="babbler", prompt="a").embedding == pytest.approx(VECTOR)


def test_what_is_not_there_is_said_in_their_shape(serve):
    answer = httpx.post(f"{serve().url}/api/pull", json={"model": "babbler"}, trust_env=False)
    assert (answer.status_code, answer.json()) == (404, {"error": "Not Found"})


def test_a_stream_that_fails_says_so_in_a_line(llama, service):
    def script(generation):
        generation.say(*service.tokenizer.encode("Once upon", add_special=False))
        generation.fail(PeerLost(1, "the work", "gone"))

    service.script = script
    with pytest.raises(ollama.ResponseError, match="gone"):
        list(llama.chat(model="babbler", messages=ASKED, stream=True))


def test_a_client_that_waits_hears_lines_that_say_nothing(serve, service):
    server = serve(limits=Limits(ping_s=0.05))
    with httpx.stream(
        "POST", f"{server.url}/api/chat", json={"model": "babbler", "messages": ASKED}, trust_env=False
    ) as answer:
        lines = answer.iter_lines()
        waiting = json.loads(next(lines))
        service.generations.get(timeout=20).finish("stop")
        *_, last = lines
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert (waiting["message"]["content"], waiting["done"]) == ("", False)
    assert json.loads(last)["done"] is True


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded", "application/octet-stream"])
def test_what_curl_sends_is_answered_and_what_a_page_may_have_sent_is_not(serve, service, kind):
    """Their manual shows `curl -d`, which calls everything a form."""
    server, body = serve(), json.dumps({"model": "babbler", "messages": ASKED, "stream": False})

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
