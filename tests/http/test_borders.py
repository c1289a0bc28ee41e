"""The text at the border of prompt and answer: both together are the tokenizer's text of all their tokens."""

import json

import httpx
import pytest

from tests.http.conftest import InstantTemplate
from tests.unit.model.vocabularies import TOKENIZERS
from tpiedge.testing.service import FakeService

PROMPTS = ("the house", "the house\n", "the 你", "你好吗" * 8, "é\ufffd")
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


class PlainTemplate(InstantTemplate):
    """Nothing but the texts."""

    def render(self, messages, *, add_generation_prompt=True, tools=None, variables=None):
        return "".join(message["content"] for message in messages)


@pytest.fixture(params=list(TOKENIZERS))
def service(request):
    return FakeService(TOKENIZERS[request.param], PlainTemplate(), vocab_size=600)


@pytest.fixture
def url(serve):
    return serve().url


def says(service, ids):
    def script(generation):
        generation.say(*ids)
        generation.finish("stop")

    service.script = script


def rest_of(tokenizer, begun, more):
    """The tokens of a text that begins with `begun`, a token or more, without those."""
    begin = len(tokenizer.encode(begun, add_special=False))
    return tokenizer.encode(begun + more, add_special=False)[begin:]


def completed(url, **body):
    """(the texts, the log probabilities' offsets, joined)."""
    answer = httpx.post(
        f"{url}/v1/completions", json={"model": "babbler", "max_tokens": 99, **body}, trust_env=False
    )
    assert answer.status_code == 200, answer.text
    if not body["stream"]:
        found = [answer.json()]
    else:
        lines = answer.text.splitlines()
        found = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [chunk["choices"][0] for chunk in found]
    offsets = [at for choice in choices if choice["logprobs"] for at in choice["logprobs"]["text_offset"]]
    return "".join(choice["text"] for choice in choices), offsets


@STREAMS
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("more", [" cat", "cat", "\ncat", "好", "好 cat"])
def test_an_echo_and_its_answer_are_one_text(service, url, prompt, more, stream):
    tokenizer = service.tokenizer
    ids = rest_of(tokenizer, "a", more)
    says(service, ids)
    whole = tokenizer.decode([*tokenizer.encode(prompt), *ids])
    echoed, offsets = completed(url, prompt=prompt, echo=True, logprobs=1, stream=stream)
    alone, _ = completed(url, prompt=prompt, stream=stream)
    assert (echoed, prompt + alone) == (whole, whole)
    assert offsets == sorted(offsets)
    assert offsets[len(tokenizer.encode(prompt))] == len(prompt)


@STREAMS
def test_a_prompt_of_tokens_may_end_within_a_character(service, url, stream):
    tokenizer = service.tokenizer
    ids = tokenizer.encode("the 你好", add_special=False)
    for cut in range(1, len(ids)):
        says(service, ids[cut:])
        text, _ = completed(url, prompt=ids[:cut], echo=True, stream=stream)
        assert text == "the 你好"
        alone, _ = completed(url, prompt=ids[:cut], stream=stream)
        assert "the 你好".endswith(alone)
        assert "\ufffd" not in alone


@STREAMS
def test_a_stop_string_may_begin_with_the_first_space(service, url, stream):
    says(service, rest_of(service.tokenizer, "the", " house cat"))
    text, _ = completed(url, prompt="the", stop=[*(f"no {n}" for n in range(63)), " house"], stream=stream)
    assert text == ""
    text, _ = completed(url, prompt="the", stop=" cat", stream=stream)
    assert text == " house"


@STREAMS
def test_an_answer_that_goes_on_keeps_its_first_space(service, url, stream):
    says(service, rest_of(service.tokenizer, "the", " house"))
    messages = [{"role": "assistant", "content": "the"}]
    body = {"model": "babbler", "messages": messages, "max_tokens": 9, "stream": stream}
    chat = httpx.post(
        f"{url}/v1/chat/completions", json=body | {"continue_final_message": True}, trust_env=False
    )
    message = httpx.post(f"{url}/v1/messages", json=body, trust_env=False)
    plain = {"model": "babbler", "prompt": "the", "raw": True, "stream": stream}
    generated = httpx.post(f"{url}/api/generate", json=plain, trust_env=False)
    lines = [
        line.removeprefix("data: ") for one in (chat, message, generated) for line in one.text.splitlines()
    ]
    found = "".join(text_of(json.loads(line)) for line in lines if line.startswith("{"))
    assert found == " house" * 3


@STREAMS
def test_another_answer_begins_by_itself(service, url, stream):
    says(service, service.tokenizer.encode("the house", add_special=False))
    body = {"model": "babbler", "messages": [{"role": "user", "content": "the"}], "stream": stream}
    chat = httpx.post(f"{url}/v1/chat/completions", json=body, trust_env=False)
    lines = [line.removeprefix("data: ") for line in chat.text.splitlines()]
    assert "".join(text_of(json.loads(line)) for line in lines if line.startswith("{")) == "the house"


def text_of(value):
    """The text in a part of an answer of any API."""
    if "choices" in value:
        return "".join(
            (one.get("delta") or one.get("message") or {}).get("content") or "" for one in value["choices"]
        )
    if value.get("type") == "message":
        return "".join(block["text"] for block in value["content"])
    return value.get("response", "") or (value.get("delta") or {}).get("text", "")
