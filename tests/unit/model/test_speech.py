"""Calls and thoughts in what models write: the forms, what only looks like one, and any cutting into pieces."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.model.speech import (
    CallForm,
    Said,
    SpeechForm,
    SpeechReader,
    SpokenText,
    Thinking,
    ToolCall,
    call_form,
)

TOOLS = ("weather", "add")


def read(form: SpeechForm, pieces: Sequence[str]) -> list[Said]:
    """With neighbouring texts of a kind joined."""
    reader = SpeechReader(form)
    said: list[Said] = []
    for one in [one for piece in pieces for one in reader.feed(piece)] + reader.finish():
        last = said[-1] if said else None
        if isinstance(one, SpokenText) and isinstance(last, SpokenText) and one.thought == last.thought:
            said[-1] = SpokenText(last.text + one.text, one.thought)
        else:
            said.append(one)
    return said


def call(index: int, name: str = "weather", **arguments: object) -> ToolCall:
    return ToolCall(index, name, json.dumps(arguments, ensure_ascii=False))


PARIS = call(0, city="Paris")
SUM = call(1, "add", a=1, b=[2, {"c": '}"'}])
#: (form, text, what is said)
CASES: list[tuple[CallForm, str, list[Said] | None]] = [
    ("hermes", "Just text, <b>bold</b>. \n", [SpokenText("Just text, <b>bold</b>. \n")]),
    ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>', [PARIS]),
    (
        "hermes",
        'Let me see.\n\n<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>\n<tool_call>\n'
        '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}\\""}]}}\n</tool_call>\n',
        [SpokenText("Let me see."), PARIS, SUM],
    ),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}', [PARIS]),
    ("hermes", '<tool_call>{"name": "weather"}</tool_call> Done. ', [call(0), SpokenText("Done.")]),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}', [PARIS]),
    ("hermes", " <tool_call> oh", [SpokenText(" <tool_call> oh")]),
    ("hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', None),
    ("hermes", '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>', None),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"x": NaN}}</tool_call>', None),
    ("hermes", '<tool_call>{"name": "weather", "argu', None),
    ("hermes", '{"name": "weather", "arguments": {}}', None),
    ("llama3", '{"name": "weather", "parameters": {"city": "Paris"}}', [PARIS]),
    ("llama3", '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}', [PARIS]),
    (
        "llama3",
        '\n{"type": "function", "name": "weather", "parameters": {"city": "Paris"}}; '
        '{"name": "add", "parameters": {"a": 1, "b": [2, {"c": "}\\""}]}}',
        [PARIS, SUM],
    ),
    ("llama3", '{"name": "other", "parameters": {}}', None),
    ("llama3", 'So: {"name": "weather", "parameters": {}}', None),
    ("llama3", "{} {x", None),
    ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}}]', [PARIS]),
    (
        "mistral",
        '[{"name": "weather", "arguments": {"city": "Paris"}, "id": "123456789"}, '
        '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}\\""}]}}]',
        [PARIS, SUM],
    ),
    ("mistral", "[1] says [TOOL_CALLS", None),
    ("mistral", "[TOOL_CALLS][]", None),
    ("", '<tool_call>{"name": "weather", "arguments": {}}</tool_call>', None),
]


@pytest.mark.parametrize(("form", "text", "said"), CASES)
def test_calls(form: CallForm, text: str, said: list[Said] | None) -> None:
    """None: the text itself."""
    assert read(SpeechForm(form, TOOLS), [text]) == (said or [SpokenText(text)])


def test_of_several_calls_only_the_first_is_wanted() -> None:
    text = '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "add"}]'
    assert read(SpeechForm("mistral", TOOLS, several=False), [text]) == [PARIS]
    twice = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>' * 2
    assert read(SpeechForm("hermes", TOOLS, several=False), [twice]) == [PARIS]


@pytest.mark.parametrize(
    ("thinking", "text", "said"),
    [
        ("marked", "<think>\nHm. \n</think>\n\nYes. ", [SpokenText("Hm.", True), SpokenText("Yes. ")]),
        ("marked", "Yes <think>no</think>", [SpokenText("Yes <think>no</think>")]),
        ("marked", "<thin", [SpokenText("<thin")]),
        ("marked", "\n<think></think>Yes", [SpokenText("Yes")]),
        ("begun", "Hm </thin k>. \n</think>Yes", [SpokenText("Hm </thin k>.", True), SpokenText("Yes")]),
        ("begun", "\nHm </th", [SpokenText("Hm </th", True)]),
        ("", "<think>x</think>", [SpokenText("<think>x</think>")]),
    ],
)
def test_thoughts(thinking: Thinking, text: str, said: list[Said]) -> None:
    assert read(SpeechForm(thinking=thinking), [text]) == said


def test_calls_come_after_thoughts_and_not_in_them() -> None:
    one = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
    form = SpeechForm("hermes", TOOLS, thinking="marked")
    assert read(form, [f"<think>Maybe {one}?</think>\n{one}"]) == [SpokenText(f"Maybe {one}?", True), PARIS]


PARTS = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<think>", "</think>", ";", " ", "\n"),
    *('{"name": "weather", "arguments": {"city": "Paris"}}', '[{"name": "add", "parameters": {}}]', "{", "}"),
    *('"', "\\", "[", "]", "text", "<", "[TOOL", "é"),
]


@given(
    st.sampled_from(["", "hermes", "llama3", "mistral"]),
    st.sampled_from(["", "marked", "begun"]),
    st.booleans(),
    st.lists(st.sampled_from(PARTS), max_size=12),
    st.data(),
)
def test_any_cut_says_the_same(
    calls: CallForm, thinking: Thinking, several: bool, parts: list[str], data: st.DataObject
) -> None:
    form, text = SpeechForm(calls, TOOLS, several, thinking), "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(form, pieces) == read(form, [text]) == read(form, list(text))
    if not calls and not thinking:
        assert "".join(one.text for one in read(form, pieces) if isinstance(one, SpokenText)) == text


def test_forms_follow_from_templates() -> None:
    assert call_form("{{ '<tool_call>' }}{{ tools }}") == "hermes"
    assert call_form("[AVAILABLE_TOOLS]{{ tools }} [TOOL_CALLS]") == "mistral"
    assert (
        call_form('{"name": function name, "parameters": dictionary of argument name and its value}')
        == "llama3"
    )
    assert call_form("{{ tools }} <tool_call><function=") == ""
    assert call_form("{{ tools }}") == ""
