"""Calls of tools and thoughts as OpenAI's client gets them, streamed and whole."""

import json
import threading

import httpx
import pytest

from tests.http.conftest import KnowingTemplate, answers
from tpiedge.api.limits import Limits

USER = [{"role": "user", "content": "How is the weather in Paris, and what is 1 and 2?"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("weather", "add")
]
CALLS = (
    'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
)
WANTED = [("weather", {"city": "Paris"}), ("add", {"a": 1})]


@pytest.fixture
def model(service):
    service.template = KnowingTemplate()
    return service


def streamed(client, **more):
    """(roles of deltas, joined: content, thoughts, calls by index, why it ended)"""
    content, thoughts, calls, reasons = "", "", {}, []
    stream = client.chat.completions.create(model="babbler", messages=USER, stream=True, **more)
    for chunk in stream:
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        thoughts += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or ():
            known = calls.setdefault(call.index, {"id": call.id, "name": "", "arguments": ""})
            known["name"] += call.function.name or ""
            known["arguments"] += call.function.arguments or ""
        if choice.finish_reason:
            reasons.append(choice.finish_reason)
    return content, thoughts, [calls[index] for index in sorted(calls)], reasons


def test_calls_streamed_and_whole(client, model):
    answers(model, CALLS)
    content, _, calls, reasons = streamed(client, tools=TOOLS)
    assert (content, reasons) == ("I look.", ["tool_calls"])
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == WANTED
    whole = client.chat.completions.create(model="babbler", messages=USER, tools=TOOLS)
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    told = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert told == WANTED
    ids = [call.id for call in choice.message.tool_calls]
    assert len({*ids}) == 2
    assert all(len(one) == 9 and one.isalnum() for one in ids)


def test_only_one_call_is_told_where_one_is_wanted(client, model):
    answers(model, CALLS)
    _, _, calls, _ = streamed(client, tools=TOOLS, parallel_tool_calls=False)
    assert [call["name"] for call in calls] == ["weather"]


def test_an_answer_without_calls_is_as_ever(client, model):
    text = answers(model, "It is sunny. ")
    assert streamed(client, tools=TOOLS) == (text, "", [], ["stop"])
    whole = client.chat.completions.create(model="babbler", messages=USER, tools=TOOLS)
    assert whole.choices[0].message.content == text
    assert whole.choices[0].message.tool_calls is None


def test_what_is_no_call_is_text(client, model):
    text = answers(model, '<tool_call>\n{"name": "rm", "arguments": {}}\n</tool_call>')
    assert streamed(client, tools=TOOLS) == (text, "", [], ["stop"])


def test_without_tools_calls_are_text(client, model):
    text = answers(model, CALLS)
    assert streamed(client) == (text, "", [], ["stop"])


def test_thoughts_are_apart(client, model):
    answers(model, "<think>\nHm, well.\n</think>\n\nYes.")
    assert streamed(client) == ("Yes.", "Hm, well.", [], ["stop"])
    message = client.chat.completions.create(model="babbler", messages=USER).choices[0].message
    assert (message.content, message.reasoning_content) == ("Yes.", "Hm, well.")


def test_scores_and_ids_of_all_tokens_are_told(client, model):
    """Also of those whose text is held back, or no content."""
    answers(model, CALLS)
    ids = model.tokenizer.encode(CALLS, add_special=False)
    stream = client.chat.completions.create(
        model="babbler",
        messages=USER,
        stream=True,
        tools=TOOLS,
        logprobs=True,
        extra_body={"return_token_ids": True},
    )
    told, scored = [], 0
    for chunk in stream:
        choice = chunk.choices[0]
        told += getattr(choice, "token_ids", None) or []
        scored += len(choice.logprobs.content) if choice.logprobs else 0
    assert told == ids
    assert scored == len(ids)


def test_who_waits_for_a_long_call_hears_that_we_live(serve, model):
    """Its arguments come as a whole, however long they take."""
    over, server = threading.Event(), serve(limits=Limits(ping_s=0.05))
    begin = model.tokenizer.encode('<tool_call>{"name": "weather", "arguments": {"x": "', add_special=False)
    more = model.tokenizer.encode(" a", add_special=False)

    def script(generation):
        def speak():
            generation.say(*begin)
            while not over.wait(0.01):
                generation.say(*more)
            generation.finish("stop")

        threading.Thread(target=speak).start()

    model.script = script
    body = {"model": "babbler", "messages": USER, "stream": True, "tools": TOOLS}
    with httpx.stream(
        "POST", f"{server.url}/v1/chat/completions", json=body, timeout=20, trust_env=False
    ) as answer:
        lines = answer.iter_lines()
        try:
            assert next(line for line in lines if line.startswith(":")) == ": ping"
        finally:
            over.set()
        *_, last = (line for line in lines if line)
    assert last == "data: [DONE]"
