"""Calls of tools and thoughts as OpenAI's client gets them, and others', streamed and whole."""

import json
import threading

import anthropic
import httpx
import pytest

from tests.http.conftest import InstantTemplate, KnowingTemplate, answers
from tpiedge.api.limits import Limits
from tpiedge.model.call_forms import CALL_MARKS

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


ARGUMENTS = '{"city": "Paris 世界", "days":[1, 2]}'
#: What a template must say, and what its model then writes: the weather with these arguments.
FORMS = {
    "hermes": (
        "<tool_call>",
        f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
    ),
    "llama3": ('"parameters":', f'{{"name": "weather", "parameters": {ARGUMENTS}}}'),
    "mistral": ("[TOOL_CALLS]", f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}}}]'),
    "mistral-args": ("[TOOL_CALLS] [ARGS]", f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}"),
    "qwen-xml": (
        "<tool_call> <function= <parameter=",
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis 世界\n</parameter>\n<parameter=days>\n"
        "[1, 2]\n</parameter>\n</function>\n</tool_call>",
    ),
    "deepseek-v3": (
        "<｜tool▁call▁begin｜> ```json",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        f"{ARGUMENTS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek-v31": (
        "<｜tool▁call▁begin｜>",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>",
    ),
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}
TYPED = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]


class FormTemplate(InstantTemplate):
    """Of a model that writes calls as this text says."""

    def __init__(self, text):
        super().__init__()
        self._text = text

    def source(self, *, tools):
        return "{{ tools }}" + self._text


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


@pytest.mark.parametrize("form", FORMS)
def test_arguments_come_piece_by_piece_in_every_form(client, service, form):
    """First the name with empty arguments; joined they are those of the whole answer, and no half characters."""
    template, text = FORMS[form]
    service.template = FormTemplate(template)
    answers(service, text)
    asked = {"model": "babbler", "messages": USER, "tools": TYPED}
    whole = client.chat.completions.create(**asked).choices[0]
    (told,) = whole.message.tool_calls
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    assert json.loads(told.function.arguments) == {"city": "Paris 世界", "days": [1, 2]}
    stream = client.chat.completions.create(**asked, stream=True)
    deltas = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
    first, *rest = deltas
    assert (first.type, first.function.name) == ("function", "weather")
    assert len(first.id) == len(told.id) == 9
    assert first.function.arguments == ""
    assert {(one.index, one.id, one.type, one.function.name) for one in rest} == {(0, None, None, None)}
    assert len(rest) > 3
    assert "".join(one.function.arguments for one in rest) == told.function.arguments


@pytest.mark.parametrize(
    ("text", "more", "why"),
    [
        ('<tool_call>{"name": "weather", "arguments": {"city": "Pa', {}, "stop"),
        ('<tool_call>{"name": "weather", "arguments": {"city": "Pa STOP"}}', {"stop": [" STOP"]}, "stop"),
    ],
)
def test_a_call_that_breaks_off_is_told_so_far_and_is_no_reason_to_call(client, model, text, more, why):
    answers(model, text)
    content, _, (call,), reasons = streamed(client, tools=TOOLS, **more)
    assert (content, reasons) == ("", [why])
    assert (call["name"], call["arguments"]) == ("weather", '{"city": "Pa')
    whole = client.chat.completions.create(model="babbler", messages=USER, tools=TOOLS, **more).choices[0]
    assert whole.finish_reason == why
    assert [one.function.arguments for one in whole.message.tool_calls] == ['{"city": "Pa']


def cut_off(service, text):
    """The cluster says `text`, which the limit of the answer cuts there."""

    def script(generation):
        generation.say(*service.tokenizer.encode(text, add_special=False))
        generation.finish("length")

    service.script = script


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_that_is_cut_leaves_no_markup(serve, client, service, form, stream):
    """In no API, wherever it is cut: what was not known to be a call is not told at all."""
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    template, text = FORMS[form]
    service.template, url = FormTemplate(template), serve().url
    asked = {"model": "babbler", "messages": USER, "tools": TYPED, "tool_choice": "required"}
    claude = {"model": "babbler", "messages": USER, "max_tokens": 99, "tool_choice": {"type": "any"}}
    claude["tools"] = [{"name": "weather", "input_schema": CITY}]
    for end in range(1, len(text), 7):
        cut_off(service, text[:end])
        if stream:
            content, _, calls, (why,) = streamed(client, tools=TYPED, tool_choice="required")
            arguments = [call["arguments"] for call in calls]
        else:
            choice = client.chat.completions.create(**asked).choices[0]
            content, why = choice.message.content or "", choice.finish_reason
            arguments = [call.function.arguments for call in choice.message.tool_calls or ()]
        assert (content, why) == ("", "length")
        whole = json.dumps(json.loads(ARGUMENTS), ensure_ascii=False)
        assert all(whole.replace(" ", "").startswith(one.replace(" ", "")) for one in arguments)
        answer = httpx.post(f"{url}/v1/messages", json=claude | {"stream": stream}, trust_env=False).text
        marks = [mark for mark in CALL_MARKS[form].separating if len(mark) > 1]
        assert not any(json.dumps(mark)[1:-1] in answer or mark in answer for mark in marks)
        assert '"text_delta"' not in answer
        assert '"max_tokens"' in answer


@pytest.mark.parametrize("stream", [False, True])
def test_a_function_is_called_as_before_there_were_tools(client, model, stream):
    answers(model, CALLS)
    functions = [tool["function"] for tool in TOOLS]
    asked = {"model": "babbler", "messages": USER, "functions": functions}
    if not stream:
        (choice,) = client.chat.completions.create(**asked).choices
        assert (choice.finish_reason, choice.message.tool_calls) == ("function_call", None)
        name, arguments = choice.message.function_call.name, choice.message.function_call.arguments
    else:
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
        parts = [chunk.delta.function_call for chunk in chunks if chunk.delta.function_call]
        name, arguments = parts[0].name, "".join(part.arguments for part in parts)
        assert len(parts) > 2
        assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["function_call"]
    assert (name, json.loads(arguments)) == WANTED[0]


@pytest.mark.parametrize("text", [CALLS, CALLS + '<tool_call>{"name": "add", "arguments": {"a": '])
def test_calls_in_anthropic_s_form(serve, model, text):
    """Streamed piece by piece; as a whole, a call that broke off is text."""
    answers(model, text)
    server = serve(limits=Limits(ping_s=0.2))
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("weather", "add")]
    asked = {"model": "babbler", "max_tokens": 400, "messages": USER, "tools": tools}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=20) as claude:
        whole = claude.messages.create(**asked)
        events = list(claude.messages.create(**asked, stream=True))
    used = [(block.name, block.input) for block in whole.content if block.type == "tool_use"]
    assert used == WANTED
    assert whole.stop_reason == ("tool_use" if text == CALLS else "end_turn")
    assert (text == CALLS) == (len([block for block in whole.content if block.type == "text"]) == 1)
    begun = [event for event in events if event.type == "content_block_start"]
    named = [one.content_block for one in begun if one.content_block.type == "tool_use"]
    assert [block.name for block in named[:2]] == ["weather", "add"]
    assert all(block.input == {} for block in named)
    at = next(one.index for one in begun if one.content_block.type == "tool_use")
    parts = [
        event.delta.partial_json
        for event in events
        if event.type == "content_block_delta" and event.index == at
    ]
    assert len(parts) > 2
    assert json.loads("".join(parts)) == WANTED[0][1]
    stopped = [event.index for event in events if event.type == "content_block_stop"]
    assert stopped == list(range(len(begun)))


def test_calls_as_responses_have_them(client, model):
    answers(model, CALLS)
    tools = [
        {"type": "function", "name": name, "parameters": None, "strict": False} for name in ("weather", "add")
    ]
    asked = {"model": "babbler", "input": "hi", "tools": tools}
    whole = client.responses.create(**asked)
    calls = [item for item in whole.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == WANTED
    events = list(client.responses.create(**asked, stream=True))
    for at, call in enumerate(whole.output):
        if call.type != "function_call":
            continue
        own = [event for event in events if getattr(event, "output_index", None) == at]
        kinds = [event.type.removeprefix("response.") for event in own]
        deltas = [event.delta for event in own if event.type.endswith("arguments.delta")]
        assert kinds == [
            "output_item.added",
            *["function_call_arguments.delta"] * len(deltas),
            "function_call_arguments.done",
            "output_item.done",
        ]
        assert len(deltas) > 2
        assert "".join(deltas) == call.arguments == own[-2].arguments == own[-1].item.arguments
        assert own[-1].item.status == "completed"


def test_ollama_s_clients_get_calls_once_they_are_whole(serve, model):
    answers(model, CALLS + '<tool_call>{"name": "add", "arguments": {"a": ')
    body = {"model": "babbler", "messages": USER, "tools": TOOLS}
    server = serve(limits=Limits(ping_s=20))
    answer = httpx.post(f"{server.url}/api/chat", json=body, timeout=20, trust_env=False)
    messages = [json.loads(line)["message"] for line in answer.text.splitlines()]
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    assert [(call["name"], call["arguments"]) for call in calls] == WANTED
    text = "".join(message["content"] for message in messages)
    assert text == 'I look.<tool_call>{"name": "add", "arguments": {"a": '


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
    """It is of a tool that nobody has declared, so that it is told once it is known to be none."""
    over, server = threading.Event(), serve(limits=Limits(ping_s=0.05))
    begin = model.tokenizer.encode('<tool_call>{"name": "rm", "arguments": {"x": "', add_special=False)
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


def test_the_tool_runner_of_their_client_sends_the_whole_conversation(serve, model):
    """Though it begins with a thread of messages, which is refused: each turn has all that was said."""

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Weather of a city.

        Args:
            city: Its name.
        """
        return f"sunny in {city}"

    prompts = []

    def script(generation):
        prompts.append(model.tokenizer.decode(generation.request.prompt_ids, skip_special=False))
        text = "Sunny." if len(prompts) > 1 else CALLS.partition("</tool_call>")[0]
        generation.say(*model.tokenizer.encode(text, add_special=False))
        generation.finish("stop")

    model.script = script
    with anthropic.Anthropic(base_url=serve().url, api_key="none", max_retries=0, timeout=20) as claude:
        asked = {"model": "babbler", "max_tokens": 99, "messages": USER, "tools": [weather]}
        last = claude.beta.messages.tool_runner(**asked).until_done()
    assert [block.text for block in last.content] == ["Sunny."]
    first, second = prompts
    assert second.startswith(first)
    assert "sunny in Paris" in second
