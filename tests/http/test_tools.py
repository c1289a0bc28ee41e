import json

import httpx
import pytest

from tests.http.conftest import InstantTemplate, KnowingTemplate, answers
from tpiedge.model.call_reader import CALL_MARKS

USER = [{"role": "user", "content": "How is the weather in Paris, and what is 1 and 2?"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("weather", "add")
]
CALLS = (
    'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
)


ARGUMENTS = '{"city": "Paris 世界", "days":[1, 2]}'
#: What a template must say, and what its model then writes: the weather with these arguments.
FORMS = {
    "hermes": ("<tool_call>", f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'),
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
    "harmony": (
        "<|start|> <|channel|> <|message|>",
        f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
    ),
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}
TYPED = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]


@pytest.fixture
def model(service):
    service.template = KnowingTemplate()
    return service


def streamed(client, **fields):
    """Returns the content, the arguments of each call, and the finish reason."""
    content, calls, why = "", {}, None
    for chunk in client.chat.completions.create(stream=True, **fields):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        for call in choice.delta.tool_calls or ():
            calls[call.index] = calls.get(call.index, "") + (call.function.arguments or "")
        assert why is None
        why = choice.finish_reason
    return content, calls.values(), why


@pytest.mark.parametrize("form", FORMS)
def test_tool_arguments_are_streamed_in_every_call_format(client, service, form):
    """First the name with empty arguments; joined they are those of the whole answer, and no half characters."""
    template, text = FORMS[form]
    service.template = InstantTemplate("{{ tools }}" + template)
    answers(service, text)
    fields = {"model": "babbler", "messages": USER, "tools": TYPED}
    whole = client.chat.completions.create(**fields).choices[0]
    (told,) = whole.message.tool_calls
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    assert json.loads(told.function.arguments) == {"city": "Paris 世界", "days": [1, 2]}
    stream = client.chat.completions.create(**fields, stream=True)
    deltas = [call for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
    first, *rest = deltas
    assert (first.type, first.function.name) == ("function", "weather")
    assert len(first.id) == len(told.id) == 9
    assert first.function.arguments == ""
    assert {(one.index, one.id, one.type, one.function.name) for one in rest} == {(0, None, None, None)}
    assert len(rest) > 3
    assert "".join(one.function.arguments for one in rest) == told.function.arguments


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_that_is_cut_leaves_no_markup(serve, client, service, form, stream):
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    template, text = FORMS[form]
    service.template, url = InstantTemplate("{{ tools }}" + template), serve().url
    fields = {"model": "babbler", "messages": USER, "tools": TYPED, "tool_choice": "required"}
    claude = {"model": "babbler", "messages": USER, "max_tokens": 99, "tool_choice": {"type": "any"}}
    claude["tools"] = [{"name": "weather", "input_schema": CITY}]
    for end in range(8 if stream else 1, len(text), 14):
        answers(service, text[:end], "length")
        if stream:
            content, arguments, why = streamed(client, **fields)
        else:
            choice = client.chat.completions.create(**fields).choices[0]
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


def test_anthropic_tool_runner_sends_the_whole_conversation(serve, model):
    """The runner begins with a thread of messages, which is refused; each turn has all that was said."""
    import anthropic

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
        fields = {"model": "babbler", "max_tokens": 99, "messages": USER, "tools": [weather]}
        last = claude.beta.messages.tool_runner(**fields).until_done()
    assert [block.text for block in last.content] == ["Sunny."]
    first, second = prompts
    assert second.startswith(first)
    assert "sunny in Paris" in second
