"""Chats of every API as prompts: turns, calls, documents, and answers that were begun."""

import base64
import json

import httpx
import pytest

from tests.http.conftest import KnowingTemplate, answers
from tpiedge.api.limits import Limits
from tpiedge.model.template import ChatTemplate

TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
]
ASKED = {"role": "user", "content": "hi"}
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat")
THINKS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
)
CALLS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }} {{ c.id }} {{ c.function.arguments | tojson }}]<tool_call>{% endfor %}"
    "{{ m.tool_call_id }}{% endfor %}{% if tools %}{% endif %}"
)


@pytest.fixture
def prompt_for(serve, service):
    """The prompt of a request, which must be accepted, before a model of that template."""
    answers(service, " x")
    server = serve()

    def ask(path, template=None, **body):
        if template is not None:
            service.template = ChatTemplate({"default": template}, {})
        answer = httpx.post(f"{server.url}{path}", json={"model": "babbler", **body}, trust_env=False)
        assert answer.status_code == 200, answer.text
        request = service.generations.get(timeout=20).request
        return service.tokenizer.decode(request.prompt_ids, skip_special=False)

    return ask


class KeepingTemplate(KnowingTemplate):
    """Keeps what it was given."""

    def render(self, messages, *, add_generation_prompt=True, tools=None, variables=None):
        self.messages, self.tools, self.variables = messages, tools, variables
        return super().render(messages)


@pytest.fixture
def keeping(service):
    service.template = KeepingTemplate()
    return service.template


# --- models without a chat template


@pytest.mark.parametrize("path", PATHS)
def test_a_model_without_a_template_says_what_it_does_instead(serve, service, path):
    service.template = None
    answers(service, " x")
    server = serve()
    body = {"model": "babbler", "max_tokens": 5, "messages": [ASKED]}
    if path == "/v1/responses":
        body = {"model": "babbler", "input": "hi"}
    answer = httpx.post(f"{server.url}{path}", json=body, trust_env=False)
    assert answer.status_code == 400
    assert "has no chat template, so it continues texts" in answer.text
    assert "/v1/completions" in answer.text
    asked = {"model": "babbler", "prompt": "hi"}
    for other in ("/v1/completions", "/api/generate"):
        assert httpx.post(f"{server.url}{other}", json=asked, trust_env=False).status_code == 200


# --- begun answers


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"continue_final_message": True}),
        ("/v1/messages", {"max_tokens": 5}),
        ("/api/chat", {"stream": False}),
    ],
)
def test_a_begun_answer_is_no_thought(prompt_for, path, more):
    messages = [ASKED, {"role": "assistant", "content": "Once"}]
    assert prompt_for(path, THINKS, messages=messages, **more) == "<user>hi<end><assistant>Once"
    assert prompt_for(path, THINKS, messages=[ASKED], **({**more, "continue_final_message": False})).endswith(
        "<think>\n"
    )


def test_a_begun_thought_is_gone_on_with(serve, service):
    service.template = ChatTemplate({"default": THINKS}, {})
    answers(service, " more</think> said")
    messages = [ASKED, {"role": "assistant", "content": "<think>hm"}]
    body = {"model": "babbler", "messages": messages, "continue_final_message": True}
    answer = httpx.post(f"{serve().url}/v1/chat/completions", json=body, trust_env=False)
    said = answer.json()["choices"][0]["message"]
    assert (said["reasoning_content"].strip(), said["content"]) == ("more", "said")


# --- calls and tools


@pytest.mark.parametrize("description", [{}, {"description": ""}, {"description": None}])
def test_a_tool_without_a_description_has_an_empty_one(prompt_for, keeping, description):
    tool = {"type": "function", "function": {**TOOLS[0]["function"], **description}}
    prompt_for("/v1/chat/completions", messages=[ASKED], tools=[tool])
    assert keeping.tools[0]["function"]["description"] == ""


def ollama_turn(*results):
    calls = [{"function": {"name": "weather", "arguments": {"city": city}}} for city in ("Paris", "Rome")]
    return [ASKED, {"role": "assistant", "content": "", "tool_calls": calls}, *results]


@pytest.mark.parametrize(
    "results",
    [
        [{"role": "tool", "tool_name": "weather", "content": text} for text in ("sun", "rain")],
        [{"role": "tool", "content": text} for text in ("sun", "rain")],
    ],
    ids=["named", "nameless"],
)  # fmt: skip
def test_results_of_ollamas_clients_follow_their_calls(prompt_for, keeping, results):
    prompt_for("/api/chat", messages=ollama_turn(*results), tools=TOOLS)
    calls = [call["id"] for call in keeping.messages[1]["tool_calls"]]
    assert [one["tool_call_id"] for one in keeping.messages[2:]] == calls
    assert len(set(calls)) == 2
    assert all(len(one) == 9 and one.isalnum() for one in calls)


def test_results_are_of_the_tool_that_they_name(prompt_for, keeping):
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("weather", "time", "weather")]
    results = [
        {"role": "tool", "tool_name": name, "content": name} for name in ("time", "weather", "weather")
    ]
    turn = [ASKED, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    prompt_for("/api/chat", messages=[*turn, *turn], tools=TOOLS)
    for begin in (0, 5):
        first, second, third = (call["id"] for call in keeping.messages[begin + 1]["tool_calls"])
        found = [one["tool_call_id"] for one in keeping.messages[begin + 2 : begin + 5]]
        assert found == [second, first, third]
        assert [one["name"] for one in keeping.messages[begin + 2 : begin + 5]] == [
            "time",
            "weather",
            "weather",
        ]


def test_calls_have_the_arguments_that_clients_sent(prompt_for):
    call = {
        "id": "abcdefgh1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"at":"Köln"}'},
    }
    messages = [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}]
    shown = "{% for c in m.tool_calls or [] %}{{ 'ö' + c.function.arguments }}{% endfor %}"
    template = "{% for m in messages %}" + shown + "{% endfor %}"
    assert prompt_for("/v1/chat/completions", template, messages=messages) == 'ö{"at":"Köln"}'
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"at": "Köln"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sun"}
    turns = [ASKED, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    assert prompt_for("/v1/messages", template, messages=turns, max_tokens=5) == 'ö{"at": "Köln"}'


def test_ids_that_a_template_refuses_are_short_in_every_api(prompt_for):
    strict = CALLS.replace(
        "[{{ c.function.name }}",
        "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}[{{ c.function.name }}",
    )
    use = {"type": "tool_use", "id": "toolu_0123456789", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_0123456789", "content": "sun"}
    turns = [ASKED, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    called = prompt_for("/v1/messages", strict, messages=turns, max_tokens=5)
    items = [
        {"type": "function_call", "call_id": "toolu_0123456789", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "toolu_0123456789", "output": "sun"},
    ]
    assert prompt_for("/v1/responses", strict, input=[ASKED, *items]) == called
    _, identity, _ = called.partition("[")[2].split(" ")
    assert called == f"<user>hi<assistant>[weather {identity} {{}}]<tool_call><tool>sun{identity}"
    assert prompt_for("/api/chat", strict, messages=ollama_turn(), stream=False).count("weather") == 2


# --- thoughts, refusals, documents


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_of_a_past_turn_have_every_name(prompt_for, keeping, name):
    prompt_for(
        "/v1/chat/completions", messages=[ASKED, {"role": "assistant", "content": "x", name: "hm"}, ASKED]
    )
    said = keeping.messages[1]
    assert said["reasoning_content"] == said["reasoning"] == said["thinking"] == "hm"


def test_thoughts_of_a_response_come_back_with_its_answer(prompt_for, keeping):
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
    prompt_for("/v1/responses", input=[ASKED, thought, said, ASKED])
    assert keeping.messages[1]["thinking"] == "hm"
    assert "thinking" not in keeping.messages[2]


def test_a_refusal_is_what_the_assistant_said(prompt_for):
    part = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}
    field = {"role": "assistant", "content": None, "refusal": "I will not."}
    for said in (part, field):
        assert (
            prompt_for("/v1/chat/completions", messages=[ASKED, said, ASKED])
            == "<user>hi<assistant>I will not.<user>hi"
        )
    assert prompt_for("/v1/responses", input=[ASKED, part, ASKED]) == "<user>hi<assistant>I will not.<user>hi"


DOCUMENTS = [
    ({"type": "text", "media_type": "text/plain", "data": "Once"}, "Once"),
    ({"type": "content", "content": "Once"}, "Once"),
    (
        {"type": "content", "content": [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]},
        "Once\nupon",
    ),
]


@pytest.mark.parametrize(("source", "text"), DOCUMENTS)
def test_a_document_of_text_is_read(prompt_for, source, text):
    document = {"type": "document", "source": source, "title": "Tale", "citations": {"enabled": True}}
    turns = [{"role": "user", "content": [document, {"type": "text", "text": "Go on."}]}]
    assert prompt_for("/v1/messages", messages=turns, max_tokens=5) == f"<user>Tale\n{text}\nGo on."
    use = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
    found = {
        "type": "search_result",
        "title": "Tale",
        "source": "book",
        "content": [{"type": "text", "text": "x"}],
    }
    result = {"type": "tool_result", "tool_use_id": "a", "content": [document, found]}
    turns = [ASKED, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    assert prompt_for("/v1/messages", messages=turns, max_tokens=5).endswith(
        f"<tool>Tale\n{text}\nTale\nbook\nx"
    )


def data_of(text, kind="text/plain"):
    return f"data:{kind};base64,{base64.b64encode(text).decode()}"


def test_a_file_of_text_is_read(prompt_for):
    file = {"filename": "tale.txt", "file_data": data_of("Es war ä".encode())}
    chat = [{"role": "user", "content": [{"type": "file", "file": file}]}]
    assert prompt_for("/v1/chat/completions", messages=chat) == "<user>tale.txt\nEs war ä"
    items = [{"role": "user", "content": [{"type": "input_file", **file}]}]
    assert prompt_for("/v1/responses", input=items) == "<user>tale.txt\nEs war ä"


# --- Anthropic's turns


def test_neighbouring_turns_of_one_role_are_one(prompt_for):
    said = [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
    ]
    turns = [ASKED, {"role": "user", "content": [{"type": "text", "text": "you"}]}, *said, ASKED]
    assert prompt_for("/v1/messages", messages=turns, max_tokens=5) == "<user>hi\nyou<assistant>a\nb<user>hi"
    assert prompt_for("/v1/messages", messages=turns[:-1], max_tokens=5) == "<user>hi\nyou<assistant>a\nb"


def test_results_in_several_turns_are_one_turns(prompt_for, keeping):
    uses = [{"type": "tool_use", "id": name, "name": "weather", "input": {}} for name in "ab"]
    results = [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": name}]}
        for name in "ab"
    ]
    turns = [ASKED, *({"role": "assistant", "content": [use]} for use in uses), *results, ASKED]
    prompt_for("/v1/messages", messages=turns, max_tokens=5)
    assert [one["role"] for one in keeping.messages] == ["user", "assistant", "tool", "tool", "user"]
    assert [call["id"] for call in keeping.messages[1]["tool_calls"]] == ["a", "b"]


def test_a_prompt_may_be_read_without_an_answer(serve, service):
    service.script = lambda generation: generation.finish("length")
    server = serve()
    body = {"model": "babbler", "messages": [ASKED], "max_tokens": 0}
    answer = httpx.post(f"{server.url}/v1/messages", json=body, trust_env=False).json()
    assert (answer["stop_reason"], answer["usage"]["output_tokens"]) == ("max_tokens", 0)
    assert answer["content"] == []
    assert service.generations.get(timeout=20).request.max_tokens == 0


def test_words_between_tools_are_no_thoughts(prompt_for, keeping):
    prompt_for("/v1/messages", messages=[ASKED], max_tokens=5, thinking={"type": "between_tools"})
    assert keeping.variables == {"enable_thinking": False}


# --- what responses repeat


def test_a_response_repeats_what_was_asked(serve, service):
    service.template = KnowingTemplate()
    answers(service, "x")
    tool = {
        "type": "function",
        "name": "weather",
        "parameters": {"type": "object", "properties": {}},
        "strict": True,
    }
    schema = {"type": "json_schema", "name": "a", "schema": {"type": "object", "properties": {}}}
    asked = {
        "instructions": "Be brief.",
        "temperature": 0.5,
        "top_p": 0.75,
        "max_output_tokens": 7,
        "metadata": {"who": "me"},
        "reasoning": {"effort": "low"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "user": "me",
    }
    url = f"{serve().url}/v1/responses"
    for more in ({"tools": [tool], "tool_choice": "auto"}, {"text": {"format": schema, "verbosity": "low"}}):
        body = {"model": "babbler", "input": "hi", **asked, **more}
        found = httpx.post(url, json=body, trust_env=False).json()
        assert {key: found[key] for key in {**asked, **more}} == {**asked, **more}
    with httpx.stream("POST", url, json={**body, "stream": True}, trust_env=False) as stream:
        events = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]
    told = [event["response"] for event in events if "response" in event]
    assert len(told) == 3
    assert all(one["instructions"] == "Be brief." and one["text"]["format"] == schema for one in told)


def test_a_response_to_little_has_the_usual_values(serve, service):
    answers(service, "x")
    url = f"{serve().url}/v1/responses"
    body = {"model": "babbler", "input": "hi", "text": {"verbosity": "low"}}
    found = httpx.post(url, json=body, trust_env=False).json()
    assert (found["instructions"], found["tools"], found["tool_choice"]) == (None, [], "auto")
    assert found["text"] == {"format": {"type": "text"}, "verbosity": "low"}


def test_a_response_repeats_nothing_that_is_very_long(serve, service):
    answers(service, "x")
    service.max_sequence = 200_000
    url = f"{serve(limits=Limits.of_context(200_000)).url}/v1/responses"
    body = {"model": "babbler", "input": "hi", "metadata": {"a": "b"}, "instructions": "the " * 40_000}
    found = httpx.post(url, json=body, trust_env=False).json()
    assert (found["metadata"], found["instructions"]) == ({"a": "b"}, None)
