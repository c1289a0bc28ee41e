"""A model that writes messages in Harmony's format, behind every API."""

import json

import httpx
import openai
import pytest
from tokenizers import Tokenizer as Backend

from tests.http.conftest import DEMO, answers
from tests.unit.model.test_harmony import CALLING, MARKS, START, TEMPLATE
from tpiedge.model.template import ChatTemplate
from tpiedge.model.tokenizer import Tokenizer

USER = [{"role": "user", "content": "How is the weather in Paris?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
THOUGHT = f"<|channel|>analysis<|message|>I think.<|end|>{START}"
SAID = f"{THOUGHT}<|channel|>final<|message|>It is sunny.<|return|>"
CALLED = (
    f"{THOUGHT}<|channel|>commentary<|message|>I look.<|end|>{START}{CALLING}weather <|constrain|>json<|message|>"
    '{"city": "Paris"}<|call|>'
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("harmony")
    backend = Backend.from_file(str(DEMO / "tokenizer.json"))
    backend.add_special_tokens(list(MARKS))
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer.open(folder, here=True)


@pytest.fixture
def model(service):
    service.template = ChatTemplate({"default": TEMPLATE}, {})
    service.vocab_size = 1 + max(service.tokenizer.vocabulary.values())
    service.eos_ids = tuple(service.tokenizer.token_id(mark) for mark in ("<|return|>", "<|call|>"))
    return service


@pytest.fixture
def ask(serve):
    server = serve()

    def post(path, **fields):
        body = {"model": "babbler", "messages": USER} | fields
        return httpx.post(f"{server.url}{path}", json=body, trust_env=False)

    return post


def prompt(model):
    request = model.generations.get(timeout=20).request
    return model.tokenizer.decode(request.prompt_ids, skip_special=False)


def test_messages_are_told_apart_in_answers_and_streams(client, model):
    fields = {"model": "babbler", "messages": USER, "tools": TOOLS}
    for text, content, why in ((SAID, "It is sunny.", "stop"), (CALLED, "I look.", "tool_calls")):
        answers(model, text)
        whole = client.chat.completions.create(**fields).choices[0]
        assert (whole.finish_reason, whole.message.content) == (why, content)
        assert whole.message.reasoning_content == "I think."
        calls = [(one.function.name, one.function.arguments) for one in whole.message.tool_calls or ()]
        assert calls == ([("weather", '{"city": "Paris"}')] if text == CALLED else [])
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**fields, stream=True)]
        assert "".join(one.delta.content or "" for one in chunks) == content
        reasoning = [one.delta.model_dump().get("reasoning_content") or "" for one in chunks]
        assert "".join(reasoning) == "I think."
        deltas = [call for one in chunks for call in one.delta.tool_calls or ()]
        assert "".join(one.function.arguments for one in deltas) == "".join(told for _, told in calls)
        assert chunks[-1].finish_reason == why


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"])
@pytest.mark.parametrize("stream", [True, False])
def test_no_answer_has_a_mark_wherever_it_is_cut(ask, model, path, stream):
    tools = TOOLS if path != "/v1/messages" else [{"name": "weather", "input_schema": CITY}]
    tools = tools if path != "/v1/responses" else [{"type": "function", **TOOLS[0]["function"]}]
    fields = {"tools": tools, "stream": stream, "input": USER, "max_tokens": 99}
    for text in (SAID, CALLED):
        ids = model.tokenizer.encode(text, add_special=False)
        for end in range(0, len(ids) + 1, 3):
            answers(model, model.tokenizer.decode(ids[:end], skip_special=False), "length")
            answer = ask(path, **fields)
            assert answer.status_code == 200, answer.text
            assert not any(mark in answer.text or json.dumps(mark)[1:-1] in answer.text for mark in MARKS)


def test_stop_strings_and_scores_are_of_the_whole_text(client, model):
    answers(model, SAID)
    fields = {"model": "babbler", "messages": USER, "logprobs": True}
    stopped = client.chat.completions.create(**fields, stop=[" sunny"]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("It is", "stop")
    answers(model, SAID)
    told = client.chat.completions.create(**fields).choices[0].logprobs.content
    assert len(told) == len(model.tokenizer.encode(SAID, add_special=False))


def test_structured_answers_and_required_calls_have_their_headers(ask, client, model):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    answers(model, '{"a": 1}')
    structured = {"response_format": {"type": "json_object"}}
    message = ask("/v1/chat/completions", **structured).json()["choices"][0]["message"]
    assert message["content"] == '{"a": 1}'
    assert prompt(model).endswith(f"{START}<|channel|>final<|message|>")
    call = f'{CALLING}weather <|constrain|>json<|message|>{{"city": "Paris"}}<|call|>'
    answers(model, call)
    for fields in ({"tool_choice": "required"}, structured):
        choice = client.chat.completions.create(
            model="babbler", messages=USER, tools=TOOLS, **fields
        ).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        assert prompt(model).endswith(START)
    begun = [*USER, {"role": "assistant", "content": "It"}]
    answers(model, f" is.<|end|>{START}{call}")
    fields = {"messages": begun, "continue_final_message": True, "tools": TOOLS}
    choice = ask("/v1/chat/completions", **fields).json()["choices"][0]
    assert prompt(model).endswith("<|channel|>final<|message|>It")
    assert choice["message"]["content"] == " is."
    assert [one["function"]["name"] for one in choice["message"]["tool_calls"]] == ["weather"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", lambda effort: {"reasoning_effort": effort}, "reasoning_effort"),
        (
            "/v1/chat/completions",
            lambda effort: {"chat_template_kwargs": {"reasoning_effort": effort}},
            "reasoning_effort",
        ),
        (
            "/v1/responses",
            lambda effort: {"input": "hi", "reasoning": {"effort": effort}},
            "reasoning.effort",
        ),
        ("/api/chat", lambda effort: {"think": effort}, ""),
    ],
)
def test_reasoning_effort_reaches_the_template(ask, model, path, fields, param):
    answers(model, SAID)
    answer = ask(path, **fields("high"))
    assert "reasoning" not in answer.headers.get("x-ignored-fields", "")
    assert "Reasoning: high" in prompt(model)
    for effort in ("minimal", "huge") if param else ():
        refusal = ask(path, **fields(effort))
        assert refusal.status_code == 400
        assert refusal.json()["error"]["param"].endswith(param)
        assert "low, medium" in refusal.json()["error"]["message"] or effort == "huge"


def test_history_has_reasoning_calls_and_results(client, model):
    answers(model, CALLED)
    first = client.chat.completions.create(model="babbler", messages=USER, tools=TOOLS).choices[0].message
    said = first.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}
    answers(model, SAID)
    later = [{"role": "developer", "content": "Be brief."}, *USER, said, result]
    client.chat.completions.create(model="babbler", messages=later, tools=TOOLS)
    prompt(model)
    text = prompt(model)
    assert "<|start|>developer<|message|>Be brief." in text
    assert text.endswith(
        f"{START}<|channel|>analysis<|message|>I think.\n\nI look.<|end|>{START} to=functions.weather<|channel|>"
        'commentary json<|message|>{"city": "Paris"}<|call|><|start|>functions.weather to=assistant<|channel|>'
        f'commentary<|message|>"sunny"<|end|>{START}'
    )
    wrong = [*USER, {"role": "assistant", "content": SAID}, *USER]
    with pytest.raises(openai.BadRequestError, match="channels within a message"):
        client.chat.completions.create(model="babbler", messages=wrong)
