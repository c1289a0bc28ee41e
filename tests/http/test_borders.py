"""The text at the border of prompt and answer: both together are the tokenizer's text of all their tokens."""

import itertools
import json

import httpx
import pytest

from tests.fakes.service import FakeService
from tests.http.conftest import InstantTemplate
from tests.unit.model.vocabularies import TOKENIZERS

PROMPTS = ("the house", "the house\n", "the 你", "你好吗" * 8, "é\ufffd")
MORE = (" cat", "cat", "\ncat", "好", "好 cat")


class PlainTemplate(InstantTemplate):
    def render(self, messages, *, add_generation_prompt=True, tools=None, variables=None):
        return "".join(message["content"] for message in messages)


@pytest.fixture(params=list(TOKENIZERS))
def service(request):
    return FakeService(TOKENIZERS[request.param], PlainTemplate(), vocab_size=600)


def says(service, ids):
    def script(generation):
        generation.say(*ids)
        generation.finish("stop")

    service.script = script


def rest_of(tokenizer, begun, more):
    begin = len(tokenizer.encode(begun, add_special=False))
    return tokenizer.encode(begun + more, add_special=False)[begin:]


def completed(url, **body):
    answer = httpx.post(
        f"{url}/v1/completions", json={"model": "babbler", "max_tokens": 99, **body}, trust_env=False
    )
    assert answer.status_code == 200, answer.text
    lines = [f"data: {answer.text}"] if not body["stream"] else answer.text.splitlines()
    found = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [chunk["choices"][0] for chunk in found]
    offsets = [at for choice in choices if choice["logprobs"] for at in choice["logprobs"]["text_offset"]]
    return "".join(choice["text"] for choice in choices), offsets


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_echoed_prompt_and_answer_decode_as_one_text(service, serve, stream):
    tokenizer, url = service.tokenizer, serve().url
    for prompt, more in itertools.product(PROMPTS, MORE):
        ids = rest_of(tokenizer, "a", more)
        says(service, ids)
        whole = tokenizer.decode([*tokenizer.encode(prompt), *ids])
        echoed, offsets = completed(url, prompt=prompt, echo=True, logprobs=1, stream=stream)
        alone, _ = completed(url, prompt=prompt, stream=stream)
        assert (echoed, prompt + alone) == (whole, whole), (prompt, more)
        assert offsets == sorted(offsets), (prompt, more)
        assert offsets[len(tokenizer.encode(prompt))] == len(prompt), (prompt, more)
