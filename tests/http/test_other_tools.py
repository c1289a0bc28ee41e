"""Calls of tools and thoughts as the clients of other APIs get them, and what they send back."""

import json

import anthropic
import ollama
import pytest

from tests.http.conftest import KnowingTemplate, answers
from tests.http.test_tools import CALLS, WANTED

ASKED = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
THOUGHTS = f"<think>\nHm. Well.\n</think>\n\n{CALLS}"
SAID = "I look."


class ShowingTemplate(KnowingTemplate):
    """Shows what it was given, as a prompt."""

    def __init__(self):
        super().__init__()
        self.seen = None

    def render(self, messages, *, add_generation_prompt=True, tools=None, variables=None):
        self.seen = (messages, tools, variables)
        return super().render([{"role": one["role"], "content": str(one["content"])} for one in messages])


@pytest.fixture
def model(service):
    service.template = ShowingTemplate()
    return service


@pytest.fixture
def server(serve):
    return serve()


@pytest.fixture
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def llama(server):
    with ollama.Client(host=server.url, trust_env=False) as client:
        yield client


CLAUDE_TOOLS = [{"name": name, "description": "x", "input_schema": SCHEMA} for name in ("weather", "add")]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("weather", "add")
]
FLAT_TOOLS = [
    {"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in ("weather", "add")
]


@pytest.mark.parametrize("stream", [False, True])
def test_messages_have_blocks_of_thoughts_and_calls(claude, model, stream):
    answers(model, THOUGHTS)
    asked = {"model": "babbler", "max_tokens": 99, "messages": ASKED, "tools": CLAUDE_TOOLS}
    if stream:
        with claude.messages.stream(**asked) as streamed:
            found = streamed.get_final_message()
    else:
        found = claude.messages.create(**asked)
    thought, text, *calls = found.content
    assert (thought.type, thought.thinking) == ("thinking", "Hm. Well.")
    assert (text.type, text.text) == ("text", SAID)
    assert [(call.name, call.input) for call in calls] == WANTED
    assert len({call.id for call in calls}) == 2
    assert found.stop_reason == "tool_use"
    _, tools, _ = model.template.seen
    assert [tool["function"]["name"] for tool in tools] == ["weather", "add"]


def test_what_tools_gave_goes_back_in_messages(claude, model):
    answers(model, "x")
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Sunny"}]}
    claude.messages.create(
        model="babbler",
        max_tokens=9,
        tools=CLAUDE_TOOLS,
        thinking={"type": "enabled", "budget_tokens": 1024},
        messages=[
            *ASKED,
            {"role": "assistant", "content": [thought, {"type": "text", "text": "I look."}, call]},
            {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
        ],
    )
    (_, said, gave, now), _, variables = model.template.seen
    assert said["content"] == "I look."
    assert said["reasoning_content"] == "Hm."
    assert said["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Paris"}}
    assert (gave["role"], gave["content"], gave["tool_call_id"]) == ("tool", "Sunny", "toolu_1")
    assert (now["role"], now["content"]) == ("user", "And now?")
    assert variables == {"enable_thinking": True}


@pytest.mark.parametrize("stream", [False, True])
def test_responses_have_items_of_thoughts_and_calls(client, model, stream):
    answers(model, THOUGHTS)
    asked = {"model": "babbler", "input": "hi", "tools": FLAT_TOOLS}
    if stream:
        with client.responses.stream(**asked) as streamed:
            events = list(streamed)
            found = streamed.get_final_response()
        kinds = [event.type for event in events]
        assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 4
        assert kinds.count("response.function_call_arguments.done") == 2
        assert [event.sequence_number for event in events] == list(range(len(events)))
    else:
        found = client.responses.create(**asked)
    thought, message, *calls = found.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "Hm. Well.")
    assert (message.type, found.output_text) == ("message", SAID)
    assert [(call.name, json.loads(call.arguments)) for call in calls] == WANTED
    assert found.status == "completed"


def test_what_functions_gave_goes_back_in_a_response(client, model):
    answers(model, CALLS)
    first = client.responses.create(model="babbler", input="hi", tools=FLAT_TOOLS)
    _, *calls = first.output
    turns = [*ASKED, *(item.model_dump() for item in first.output)]
    turns += [{"type": "function_call_output", "call_id": call.call_id, "output": "3"} for call in calls]
    client.responses.create(model="babbler", input=turns, tools=FLAT_TOOLS)
    (_, said, *gave), _, _ = model.template.seen
    assert said["content"] == SAID
    assert [call["function"]["name"] for call in said["tool_calls"]] == ["weather", "add"]
    assert [one["tool_call_id"] for one in gave] == [call["id"] for call in said["tool_calls"]]


def test_ollama_s_clients_see_what_the_model_can(llama, model):
    assert llama.show("babbler").capabilities == ["completion", "embedding", "tools", "thinking"]


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_s_chats_have_thoughts_and_calls(llama, model, stream):
    answers(model, THOUGHTS)
    found = llama.chat(model="babbler", messages=ASKED, tools=TOOLS, stream=stream, think=True)
    parts = list(found) if stream else [found]
    assert "".join(part.message.thinking or "" for part in parts) == "Hm. Well."
    assert "".join(part.message.content for part in parts) == SAID
    calls = [call.function for part in parts for call in part.message.tool_calls or ()]
    assert [(call.name, call.arguments) for call in calls] == WANTED
    assert parts[-1].done_reason == "stop"
    assert model.template.seen[2] == {"enable_thinking": True}


def test_what_tools_gave_goes_back_to_ollama_s_chat(llama, model):
    answers(model, CALLS)
    first = llama.chat(model="babbler", messages=ASKED, tools=TOOLS).message
    gave = [
        {"role": "tool", "content": "3", "tool_name": "add"},
        {"role": "tool", "content": "Sunny", "tool_name": "weather"},
    ]
    llama.chat(model="babbler", messages=[*ASKED, first, *gave], tools=TOOLS)
    (_, said, *results), _, _ = model.template.seen
    ids = {call["function"]["name"]: call["id"] for call in said["tool_calls"]}
    assert [one["tool_call_id"] for one in results] == [ids["add"], ids["weather"]]


def test_a_result_is_of_a_call_that_has_none_yet(llama, model):
    """Calls of earlier turns that came to nothing do not count; a further result is of the tool's last call,
    and that of a tool which was never called has an id of its own."""
    answers(model, CALLS)
    add, weather = ({"function": {"name": name, "arguments": {}}} for name in ("add", "weather"))
    rounds = [{"role": "assistant", "tool_calls": [add, weather]}, {"role": "user", "content": "on"}] * 9
    gave = [
        {"role": "tool", "content": "x"} | told
        for told in ({"tool_name": "weather"}, {}, {"tool_name": "add"}, {"tool_name": "oven"})
    ]
    llama.chat(model="babbler", messages=[*ASKED, *rounds[:-1], *gave], tools=TOOLS)
    seen = model.template.seen[0]
    first, second = (call["id"] for call in seen[-len(gave) - 1]["tool_calls"])
    *of_calls, own = (one["tool_call_id"] for one in seen[-len(gave) :])
    assert of_calls == [second, first, first]
    assert own not in {call["id"] for one in seen for call in one.get("tool_calls", ())}
