"""Answers in Harmony's format, as lists of tokens: marks are one token each, like all text between them."""

import re
from typing import Any

import pytest

from tests.unit.model.test_chat_prompt import SYSTEM, USER, calling, prompt, result
from tests.unit.model.test_output import TOOLS, Call, call, read
from tpiedge.model.call_reader import CALL_MARKS, call_form
from tpiedge.model.output import OutputForm, OutputText, Thinking, end_of_reasoning, thinking_after

MARKS = CALL_MARKS["harmony"].separating
FORM = OutputForm("harmony", TOOLS, thinking="channels")
START, CALLING = "<|start|>assistant", "<|channel|>commentary to=functions."
HM = OutputText("Hm.", True)
PARIS = call(0, city="Paris")
WHOLE = (
    f"<|channel|>analysis<|message|>Hm.<|end|>{START}<|channel|>commentary<|message|>I look.<|end|>{START}{CALLING}"
    f'weather <|constrain|>json<|message|>{{"city": "Paris"}}<|call|>{START} to=functions.add<|channel|>commentary json'
    f"<|message|>{{}}<|call|>{START}<|channel|>final<|message|>Sunny. \n<|return|>"
)
ALL: list[OutputText | Call] = [HM, OutputText("I look."), PARIS, call(1, "add"), OutputText("\n\nSunny. \n")]
#: (answer, what is said)
CASES: list[tuple[str, list[OutputText | Call]]] = [
    (WHOLE, ALL),
    ("<|channel|>final<|message|>Hi <b> <|x|>", [OutputText("Hi <b> <|x|>")]),
    (f"<|channel|>analysis<|message|>Hm.<|end|>{START}<|channel|>final<|message|>Hi", [HM, OutputText("Hi")]),
    ("<|channel|>analysis<|message|>Hm.<|end|>" * 2, [OutputText("Hm.\n\nHm.", True)]),
    (f'{CALLING}weather<|message|>\n{{"city": "Paris"}}\n<|end|>', [PARIS]),
    (' to=functions.weather<|channel|>analysis code<|message|>{"city": "Paris"}', [PARIS]),
    (f'{CALLING[:-10]}weather<|message|>{{"city": "Paris"}}', [PARIS]),
    # Stray channels before the one that counts.
    ("<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm.", [HM]),
    # Calls that are none.
    (f"{CALLING}rm<|message|>{{}}<|call|>", [OutputText("{}")]),
    ("<|channel|>analysis to=python code<|message|>1 + 1<|call|>", [OutputText("1 + 1", True)]),
    (f"{CALLING}weather<|message|>Paris<|call|>", [OutputText("Paris")]),
    (f"{CALLING}weather<|message|><|call|>", []),
    (
        f'{CALLING}weather<|message|>{{"x": NaN}}<|call|>{START}<|channel|>final<|message|>Hi',
        [Call(0, "weather", '{"x": NaN}', '{"x": NaN}'), OutputText("Hi")],
    ),
    (
        f'{CALLING}weather<|message|>{{"x": ]}}<|call|>{START}<|channel|>final<|message|>Hi',
        [Call(0, "weather", '{"x": ]', '{"x": ]'), OutputText("}\n\nHi")],
    ),
    # Malformed headers.
    ("Hi, <|oh", [OutputText("Hi, <|oh")]),
    ("Hi<|end|> \n", [OutputText("Hi")]),
    ("<|message|>Hi", [OutputText("Hi")]),
    ("<|start|>assistant<|message|>Hi", [OutputText("Hi")]),
    ("<|channel|>secret<|message|>Hi", [OutputText("Hi")]),
    ("<|channel|><|message|>Hi", [OutputText("Hi")]),
    ("<|channel|>final<|end|><|channel|><|start|><|channel|>analysis<|return|>", []),
    (f"<|channel|>final<|end|>{START}<|channel|>analysis<|message|>Hm.", [HM]),
    ("<|channel|>final " + "Hi" * 200, [OutputText("final " + "Hi" * 200)]),
    ("<|channel|>" + "Hi" * 200 + "<|message|>Hm.<|end|>", [OutputText("Hi" * 200 + "\n\nHm.")]),
    ("<|channel|>final<|message|>", []),
    ("<|end|><|return|><|call|>", []),
]  # fmt: skip


def tokens(text: str) -> list[str]:
    return [piece for piece in re.split(f"({'|'.join(map(re.escape, MARKS))})", text) if piece]


@pytest.mark.parametrize(("text", "said"), CASES)
def test_messages_become_reasoning_content_and_calls(text: str, said: list[OutputText | Call]) -> None:
    for pieces in ([text], tokens(text), list(text)):
        assert read(FORM, pieces) == said


def joined(said: list[OutputText | Call], *, reasoning: bool = False) -> str:
    return "".join(one.text for one in said if isinstance(one, OutputText) and one.reasoning == reasoning)


@pytest.mark.parametrize(("text", "said"), CASES)
@pytest.mark.parametrize("cut", [True, False])
def test_answer_may_end_after_any_token(text: str, said: list[OutputText | Call], cut: bool) -> None:
    """The texts and the arguments of a part begin those of the whole answer, and no mark is text."""
    pieces = [letters for token in tokens(text) for letters in ([token] if token in MARKS else token)]
    whole_calls = [one for one in said if isinstance(one, Call)]
    for end in range(len(pieces)):
        part = read(FORM, pieces[:end], cut=cut)
        for reasoning in (True, False):
            assert joined(said, reasoning=reasoning).startswith(joined(part, reasoning=reasoning))
        calls = [one for one in part if isinstance(one, Call)]
        assert [one.name for one in calls] == [one.name for one in whole_calls[: len(calls)]]
        assert all(a.arguments.startswith(b.arguments) for a, b in zip(whole_calls, calls, strict=False))
        assert not any(mark in one.text for one in part if isinstance(one, OutputText) for mark in MARKS)


def test_text_and_arguments_are_streamed() -> None:
    assert read(OutputForm(thinking="channels"), [WHOLE])[:2] == [
        HM,
        OutputText('I look.\n\n{"city": "Paris"}\n\n{}\n\nSunny. \n'),
    ]
    assert read(OutputForm("harmony", TOOLS, several=False), [WHOLE])[2:] == [
        PARIS,
        OutputText("\n\nSunny. \n"),
    ]
    required = read(OutputForm("harmony", TOOLS, required=True), [WHOLE])
    assert required == [HM, PARIS, call(1, "add")]


#: The variables and constructs of gpt-oss's template: macros, the date, an effort, refusals, one call in a message.
TEMPLATE = """
{%- macro kind(of) -%}{{ of.type if of.type is string else of.type | join(' | ') }}{%- endmacro -%}
{%- macro listed(tools) -%}
{%- for tool in tools -%}{%- set tool = tool.function -%}
{{- '// ' + tool.description + '\\ntype ' + tool.name + ' = (_: {' -}}
{%- for (name, of) in (tool.parameters.properties or {}).items() -%}
{{- name + ('' if name in (tool.parameters.required or []) else '?') + ': ' + kind(of) + ',' -}}
{%- endfor -%}{{- '}) => any;\\n' -}}
{%- endfor -%}
{%- endmacro -%}
{%- macro opening() -%}
{%- if model_identity is not defined -%}{%- set model_identity = 'A model.' -%}{%- endif -%}
{%- if reasoning_effort is not defined -%}{%- set reasoning_effort = 'medium' -%}{%- endif -%}
{{- model_identity + ' Year ' + strftime_now('%Y') | length | string + '. Reasoning: ' + reasoning_effort -}}
{%- if builtin_tools -%}{{- builtin_tools -}}{%- endif -%}
{%- endmacro -%}
{{- '<|start|>system<|message|>' -}}{{- opening() -}}{{- '<|end|>' -}}
{%- if messages[0].role in ('developer', 'system') -%}
{%- set told, rest = messages[0].content, messages[1:] -%}
{%- else -%}
{%- set told, rest = '', messages -%}
{%- endif -%}
{%- if told or tools -%}
{{- '<|start|>developer<|message|>' + told -}}{%- if tools -%}{{- listed(tools) -}}{%- endif -%}{{- '<|end|>' -}}
{%- endif -%}
{%- set last = namespace(name=none) -%}
{%- for message in rest -%}
{%- if message.role == 'assistant' -%}
{%- if '<|channel|>' in message.content or ('thinking' in message and '<|channel|>' in message.thinking) -%}
{{- raise_exception('channels within a message') -}}
{%- endif -%}
{%- if 'tool_calls' in message -%}
{%- set call = message.tool_calls[0].function -%}
{%- if message.content and message.thinking -%}{{- raise_exception('both content and thinking') -}}{%- endif -%}
{%- set later = namespace(found=false) -%}
{%- for other in rest[loop.index:] -%}
{%- if other.role == 'assistant' and 'tool_calls' not in other -%}{%- set later.found = true -%}{%- endif -%}
{%- endfor -%}
{%- if (message.content or message.thinking) and not later.found -%}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + (message.content or message.thinking) + '<|end|>' -}}
{%- endif -%}
{{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' -}}
{{- call.arguments | tojson + '<|call|>' -}}
{%- set last.name = call.name -%}
{%- else -%}
{%- if loop.last and not add_generation_prompt and 'thinking' in message -%}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' -}}
{%- endif -%}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content -}}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' -}}
{%- endif -%}
{%- elif message.role == 'tool' -%}
{%- if last.name is none -%}{{- raise_exception('a result without a call') -}}{%- endif -%}
{{- '<|start|>functions.' + last.name + ' to=assistant<|channel|>commentary<|message|>' -}}
{{- message.content | tojson + '<|end|>' -}}
{%- elif message.role == 'user' -%}
{{- '<|start|>user<|message|>' + message.content + '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""
ASKED = "<|start|>user<|message|>hello<|end|>"
CALLED = f'{START} to=functions.look<|channel|>commentary json<|message|>{{"at": "sky"}}<|call|>'
SEEN = '<|start|>functions.look to=assistant<|channel|>commentary<|message|>"seen"<|end|>'
HEAD = re.compile(r"^<\|start\|>system<\|message\|>A model\. Year 4\. Reasoning: (\w+)<\|end\|>")


def history(*messages: dict[str, Any], **options: Any) -> str:
    """Returns the prompt after the messages of system and developer."""
    _, asked, rest = prompt(TEMPLATE, *messages, **options).partition(ASKED)
    return asked + rest


def test_template_gets_its_variables_and_constructs() -> None:
    assert call_form(TEMPLATE) == "harmony"
    found = HEAD.match(prompt(TEMPLATE, USER))
    assert found
    assert found[1] == "medium"
    found = HEAD.match(prompt(TEMPLATE, USER, variables={"reasoning_effort": "high"}))
    assert found
    assert found[1] == "high"
    assert "<|start|>developer<|message|>Be brief.// \ntype look = (_: {}) => any;\n" in prompt(
        TEMPLATE, SYSTEM, USER
    )


@pytest.mark.parametrize("content", [None, "", "I look."])
@pytest.mark.parametrize("reasoning", ["", "hm"])
def test_reasoning_and_content_come_before_a_call(content: str | None, reasoning: str) -> None:
    more = {"reasoning_content": reasoning} if reasoning else {}
    told = "\n\n".join(text for text in (reasoning, content) if text)
    before = f"{START}<|channel|>analysis<|message|>{told}<|end|>" if told else ""
    said = history(USER, calling(content, **more), result())
    assert said == f"{ASKED}{before}{CALLED}{SEEN}{START}"


def test_calls_of_one_message_come_one_by_one() -> None:
    both = calling(reasoning_content="hm")
    both["tool_calls"] = [*both["tool_calls"], *calling(identity="bcdefghi2")["tool_calls"]]
    before = f"{START}<|channel|>analysis<|message|>hm<|end|>"
    said = history(USER, both, result("bcdefghi2"), result())
    assert said == f"{ASKED}{before}{CALLED}{SEEN}{CALLED}{SEEN}{START}"
    final = {"role": "assistant", "content": "Blue.", "reasoning_content": "so"}
    said = history(USER, calling(), result(), final, USER)
    assert said == f"{ASKED}{CALLED}{SEEN}{START}<|channel|>final<|message|>Blue.<|end|>{ASKED}{START}"


@pytest.mark.parametrize(
    ("messages", "begun", "thinking", "plain", "with_tools"),
    [
        ([USER], False, "channels", "<|channel|>final<|message|>", ""),
        ([USER, {"role": "assistant", "content": "Bl"}], True, "continued", "", f"<|end|>{START}"),
    ],
)
def test_answer_begins_where_the_prompt_ends(
    messages: list[dict[str, Any]], begun: bool, thinking: Thinking, plain: str, with_tools: str
) -> None:
    text = prompt(TEMPLATE, *messages, begun=begun)
    assert text.endswith(f"{START}<|channel|>final<|message|>Bl" if begun else START)
    assert thinking_after(text, TEMPLATE, "Bl" if begun else "") == thinking
    assert end_of_reasoning(thinking, tools=False) == plain
    assert end_of_reasoning(thinking, tools=True) == with_tools
    rest = f"ue.<|end|>{START}<|channel|>analysis<|message|>Hm."
    if begun:
        for pieces in ([rest], list(rest)):
            assert read(OutputForm(thinking=thinking), pieces) == [OutputText("ue."), HM]
