import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpiedge.model.call_reader import (
    CALL_MARKS,
    CallArguments,
    CallBegun,
    CallEnded,
    CallForm,
    ReadTool,
    call_form,
)
from tpiedge.model.held_text import JsonScan
from tpiedge.model.output import OutputForm, OutputParser, OutputText, Thinking

TOOLS = (ReadTool("weather", ("city", "note")), ReadTool("add"))


@dataclass(frozen=True)
class Call:
    """A call as a client joins its parts. `broken` is the raw text of an unfinished call."""

    index: int
    name: str
    arguments: str
    broken: str = ""


def read(form: OutputForm, pieces: Sequence[str], *, cut: bool = False) -> list[OutputText | Call]:
    """Parses the pieces, and joins neighbouring texts of a kind and the parts of calls. `cut`: the answer was cut."""
    reader = OutputParser(form)
    said: list[OutputText | Call] = []
    begun: dict[int, tuple[str, list[str]]] = {}
    feeds = [*((piece, None) for piece in pieces), ("", "length" if cut else "stop")]
    for one in [one for one_feed in feeds for one in reader.feed(*one_feed)]:
        last = said[-1] if said else None
        match one:
            case CallBegun(index, name):
                assert index not in begun
                begun[index] = name, []
            case CallArguments(index, text):
                assert text
                assert index == max(begun)
                begun[index][1].append(text)
            case CallEnded(index, broken):
                name, parts = begun[index]
                said.append(Call(index, name, "".join(parts), broken))
                if not broken:
                    assert isinstance(json.loads("".join(parts)), dict)
            case OutputText() if isinstance(last, OutputText) and one.reasoning == last.reasoning:
                said[-1] = OutputText(last.text + one.text, one.reasoning)
            case _:
                said.append(one)
    assert len(begun) == sum(isinstance(one, Call) for one in said)
    return said


def call(index: int, name: str = "weather", **arguments: object) -> Call:
    return Call(index, name, json.dumps(arguments, ensure_ascii=False))


PARIS = call(0, city="Paris")
SUM = call(1, "add", a=1, b=[2, {"c": '}"'}])
#: (form, text, what is said)
CASES: list[tuple[CallForm, str, list[OutputText | Call] | None]] = [
    ("hermes", "Just text, <b>bold</b>. \n", [OutputText("Just text, <b>bold</b>. \n")]),
    ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>', [PARIS]),
    (
        "hermes",
        'Let me see.\n\n<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>\n<tool_call>\n'
        '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}\\""}]}}\n</tool_call>\n',
        [OutputText("Let me see."), PARIS, SUM],
    ),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}', [PARIS]),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}', [PARIS]),
    ("hermes", " <tool_call> oh", [OutputText(" <tool_call> oh")]),
    ("hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', None),
    (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"x": NaN}}</tool_call>',
        [
            Call(0, "weather", '{"x": NaN}', '<tool_call>{"name": "weather", "arguments": {"x": NaN}'),
            OutputText("}</tool_call>"),
        ],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"city": "Paris"}, "id": 7, "name": "weather"}</tool_call>',
        [PARIS],
    ),
    ("hermes", '<tool_call>{"name": "rm", "x": "<tool_call>{\\"name\\": \\"add\\"}"}', None),
    (
        "hermes",
        'Oh <tool_call>{"name": "weather", "arguments": {"city": "Par',
        [
            OutputText("Oh"),
            Call(0, "weather", '{"city": "Par', ' <tool_call>{"name": "weather", "arguments": {"city": "Par'),
        ],
    ),
    ("hermes", '<tool_call>{"name": "weather", "argu', None),
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
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "rm", "arguments": {}}, {"name": "weather", "arguments": {"city": "Paris"}}, '
        '{"arguments": {"x": "]"}, "name": "rm"} , {"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}\\""}]}}] .',
        [
            OutputText('[TOOL_CALLS] [{"name": "rm", "arguments": {}}'),
            PARIS,
            OutputText(', {"arguments": {"x": "]"}, "name": "rm"}'),
            SUM,
            OutputText("."),
        ],
    ),
    (
        "mistral",
        '[{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "rm", "arguments": {}} ] and so on',
        [PARIS, OutputText(', {"name": "rm", "arguments": {}} ] and so on')],
    ),
    ("mistral", '[{"name": "rm", "arguments": {}}, {"name": "rm"}, 7] and so on', None),
    ("mistral", "[TOOL_CALLS][]", None),
    ("mistral-args", '[TOOL_CALLS]weather[ARGS]{"city": "Paris"}', [PARIS]),
    (
        "mistral-args",
        'Hm.[TOOL_CALLS]weather[CALL_ID]123456789[ARGS]{"city": "Paris"}[TOOL_CALLS]add[ARGS] '
        '{"a": 1, "b": [2, {"c": "}\\""}]}',
        [OutputText("Hm."), PARIS, SUM],
    ),
    ("mistral-args", '[TOOL_CALLS]rm[ARGS]{"x": "[TOOL_CALLS]add[ARGS]{}"}', None),
    ("mistral-args", "[TOOL_CALLS]" + "weather" * 99, None),
    (
        "mistral-args",
        '[TOOL_CALLS]weather[ARGS]{"city": "Pa',
        [Call(0, "weather", '{"city": "Pa', '[TOOL_CALLS]weather[ARGS]{"city": "Pa')],
    ),
    (
        "qwen-xml",
        "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        [OutputText("I look."), PARIS],
    ),
    (
        "qwen-xml",
        "<tool_call>\n<function=weather>\n<parameter=city>\n5\n</parameter>\n<parameter=days>\n5\n</parameter>\n"
        "<parameter=rain>\nTrue\n</parameter>\n<parameter=how>\nto go\n</parameter>\n</function>\n</tool_call>\n"
        '<tool_call>\n<function=add>\n<parameter=a>\n[1,\n"2"]\n</parameter>\n</function>\n</tool_call>',
        [call(0, city="5", days=5, rain=True, how="to go"), Call(1, "add", '{"a": [1,\n"2"]}')],
    ),
    (
        "qwen-xml",
        '<function=weather><parameter=city> "A"\n\n</paramete>\\\n</parameter><parameter=note></parameter></function>',
        [call(0, city=' "A"\n\n</paramete>\\', note="")],
    ),
    ("qwen-xml", "<tool_call>\n<function=add>\n</function>\n</tool_call>", [call(0, "add")]),
    (
        "qwen-xml",
        "<tool_call><function=rm><parameter=x><function=add></function></parameter></function>",
        None,
    ),
    ("qwen-xml", "<tool_call> oh <function= </tool_call>", None),
    (
        "qwen-xml",
        "<function=add><parameter=a>1</parameter><parameter=a>2</parameter></function>",
        [
            Call(0, "add", '{"a": 1', "<function=add><parameter=a>1</parameter><parameter=a>"),
            OutputText("2</parameter></function>"),
        ],
    ),
    (
        "qwen-xml",
        "<function=weather><parameter=city>\nPar\n",
        [Call(0, "weather", '{"city": "Par', "<function=weather><parameter=city>\nPar")],
    ),
    (
        "deepseek-v3",
        "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n'
        '{"a": 1, "b": [2, {"c": "}\\""}]}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [OutputText("Well."), PARIS, SUM],
    ),
    ("deepseek-v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>rm\n```json\n{}\n```", None),
    (
        "deepseek-v31",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
        '<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1, "b": [2, {"c": "}\\""}]}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        [PARIS, SUM],
    ),
    ("deepseek-v31", "<｜tool▁calls▁begin｜> oh <｜tool▁call▁begin｜>weather", None),
    ("", '<tool_call>{"name": "weather", "arguments": {}}</tool_call>', None),
]


@pytest.mark.parametrize(("form", "text", "said"), CASES)
def test_tool_calls_are_parsed_in_every_form(
    form: CallForm, text: str, said: list[OutputText | Call] | None
) -> None:
    """Calls are found in any pieces; for None the output is the text itself."""
    for pieces in ([text], list(text)):
        assert read(OutputForm(form, TOOLS), pieces) == (said or [OutputText(text)])


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "a long one'),
        ("llama3", '{"name": "weather", "parameters": {"city": "a long one'),
        ("mistral-args", '[TOOL_CALLS]weather[ARGS]{"city": "a long one'),
        ("qwen-xml", "<tool_call><function=weather><parameter=city>a long one"),
        ("deepseek-v31", '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "a long one'),
        ("harmony", '<|channel|>commentary to=functions.weather json<|message|>{"city": "a long one'),
    ],
)
def test_call_arguments_are_streamed(form: CallForm, text: str) -> None:
    said = OutputParser(OutputForm(form, TOOLS)).feed(text)
    assert said[0] == CallBegun(0, "weather")
    told = "".join(one.text for one in said if isinstance(one, CallArguments))
    assert told == '{"city": "a long one'


def test_parser_holds_back_only_possible_end_marks() -> None:
    reader = OutputParser(OutputForm("qwen-xml", TOOLS))
    reader.feed("<function=weather><parameter=city>")
    told = [reader.feed(piece) for piece in ("a", "b\n", "</par", "x", "\n</parameter>")]
    texts = ["".join(one.text for one in said if isinstance(one, CallArguments)) for said in told]
    assert texts == ['"a', "b", "", "\\n</parx", '"']
    reader = OutputParser(OutputForm("hermes", TOOLS))
    reader.feed('<tool_call>{"name": "add", "arguments": ')
    told = [reader.feed(piece) for piece in ('{"a": tr', "ue, ", '"b": "x\\', "n\\ud83", 'd"')]
    texts = ["".join(one.text for one in said if isinstance(one, CallArguments)) for said in told]
    assert texts == ['{"a": tr', "ue, ", '"b": "x\\', "n\\ud83", 'd"']


@pytest.mark.parametrize(
    ("thinking", "text", "said"),
    [
        ("marked", '<think>Hm.</think>\n{"a": 1} b', [OutputText("Hm.", True), OutputText('{"a": 1} b')]),
        ("marked", "<think>\nHm. \n</think>\n\nYes. ", [OutputText("Hm.", True), OutputText("Yes. ")]),
        ("marked", "Yes <think>no</think>", [OutputText("Yes <think>no</think>")]),
        ("marked", "<thin", [OutputText("<thin")]),
        ("marked", "\n<think></think>Yes", [OutputText("Yes")]),
        ("begun", "Hm </thin k>. \n</think>Yes", [OutputText("Hm </thin k>.", True), OutputText("Yes")]),
        ("begun", "\nHm </th", [OutputText("Hm </th", True)]),
        ("", "<think>x</think>", [OutputText("<think>x</think>")]),
    ],
)
def test_reasoning_is_separated_from_content(
    thinking: Thinking, text: str, said: list[OutputText | Call]
) -> None:
    for form in ("", "llama3"):  # to which the JSON only looks like a call
        assert read(OutputForm(form, TOOLS, thinking=thinking), [text]) == said


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def _enveloped(key: str, arguments: str) -> str:
    return f'{{"name": "weather", "{key}": {arguments}}}'


#: How a model writes calls of the weather with these arguments.
WRITTEN: dict[CallForm, Callable[[list[str]], str]] = {
    "hermes": lambda every: "\n".join(
        f"<tool_call>\n{_enveloped('arguments', one)}\n</tool_call>" for one in every
    ),
    "llama3": lambda every: "; ".join(_enveloped("parameters", one) for one in every),
    "mistral": lambda every: f"[TOOL_CALLS] [{', '.join(_enveloped('arguments', one) for one in every)}]",
    "mistral-args": lambda every: "".join(f"[TOOL_CALLS]weather[ARGS]{one}" for one in every),
    "deepseek-v3": lambda every: (
        "<｜tool▁calls▁begin｜>"
        + "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{one}\n```<｜tool▁call▁end｜>"
            for one in every
        )
        + "<｜tool▁calls▁end｜>"
    ),
    "deepseek-v31": lambda every: (
        "<｜tool▁calls▁begin｜>"
        + "".join(f"<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{one}<｜tool▁call▁end｜>" for one in every)
        + "<｜tool▁calls▁end｜>"
    ),
    "harmony": lambda every: "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{one}<|call|>"
        for one in every
    ),
}
WRITTEN_XML = "".join(
    f"<tool_call>\n<function={name}>\n<parameter=city>\nPa{key}ris\\\n</parameter>\n</function>\n</tool_call>\n"
    for name, key in (("weather", ""), ("add", "<"))
)
ARGUMENTS = ['{"city": "Paris \\u00e9", "days": [1, true]}', '{"city": "x"}']
#: Two calls in every form, with what opens the first one and, where there is such a form, without.
CUT: list[tuple[CallForm, str]] = [
    *((form, written(ARGUMENTS)) for form, written in WRITTEN.items()),
    ("qwen-xml", WRITTEN_XML),
    ("mistral", WRITTEN["mistral"](ARGUMENTS).removeprefix("[TOOL_CALLS] ")),
    ("llama3", f"<|python_tag|>{WRITTEN['llama3'](ARGUMENTS)}"),
]


@pytest.mark.parametrize(("form", "text"), CUT)
@pytest.mark.parametrize("several", [True, False])
def test_answer_of_required_calls_has_no_content(form: CallForm, text: str, several: bool) -> None:
    """Calls are reported as far as they came, wherever the answer was cut."""
    required = OutputForm(form, TOOLS, several, required=True)
    for end in range(len(text) + 1):
        said = read(required, [*text[:end]])
        assert all(isinstance(one, Call) for one in said)
        assert said == read(required, [text[:end]]) == read(required, [text[:end]], cut=True)
    assert len(said) == 1 + several


@pytest.mark.parametrize(("form", "text"), CUT)
def test_truncated_call_leaves_no_mark_in_content(form: CallForm, text: str) -> None:
    """A call may follow text. If only JSON begins a call, the text is content until the name is known."""
    marks = CALL_MARKS[form]
    before = "" if marks.bare else "Well, a < b."
    opener = next((mark for mark in marks.openers if text.startswith(mark)), "")
    for end in range(len(opener) or 1, len(text) + 1):
        said = read(OutputForm(form, TOOLS), [before, *text[:end]], cut=True)
        content = "".join(one.text for one in said if isinstance(one, OutputText)).removeprefix(before)
        if opener or any(isinstance(one, Call) for one in said):
            assert content == ""
        else:
            assert content == text[:end]


@pytest.mark.parametrize("text", ["a <", "a <tool", "a [TOOL", "<b", '{"a": 1', "["])
@pytest.mark.parametrize("form", CALL_MARKS)
def test_truncated_text_is_content_to_its_end(form: CallForm, text: str) -> None:
    """The end is content although it may have become a mark."""
    (said,) = read(OutputForm(form, TOOLS), [text], cut=True) or [OutputText(text)]
    assert said == OutputText(text)


@pytest.mark.parametrize("text", ["[\n", "[ ", "<\n", "</tool_call>", "; "])
@pytest.mark.parametrize("form", CALL_MARKS)
def test_truncated_text_is_same_with_separate_finish(form: CallForm, text: str) -> None:
    output_form = OutputForm(form, TOOLS)
    assert read(output_form, [text], cut=True) == read(output_form, [text, ""], cut=True)


@pytest.mark.parametrize("rest", ["", ', "x": '])
def test_call_with_arguments_first_starts_once_named(rest: str) -> None:
    reader = OutputParser(OutputForm("hermes", TOOLS))
    said = [
        one
        for letter in '<tool_call>{"arguments": {"city": "Paris"}, "name": "weather"'
        for one in reader.feed(letter)
    ]
    assert [type(one) for one in said] == [CallBegun, CallArguments, CallEnded]
    assert not any(isinstance(one, CallBegun) for one in reader.feed(rest, "stop"))


def test_non_object_arguments_become_text() -> None:
    inner = '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}}]'
    *texts, call = read(
        OutputForm("mistral", TOOLS), [*'[TOOL_CALLS][{"name": "weather", "arguments": ', *inner]
    )
    assert isinstance(call, Call)
    assert (call.name, call.arguments) == ("weather", '{"city": "Paris"}')
    assert [type(one) for one in texts] == [OutputText]


PARTS = [
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<think>", "</think>", ";", " ", "\n",
    '{"name": "weather", "arguments": {"city": "Paris"}}', '[{"name": "add", "parameters": {}}]', "{", "}", '"', "\\",
    "[", "]", "text", "<", "[TOOL", "é", "[ARGS]", "[CALL_ID]", "weather", "1.5e", "tru", ">", ": ", ",", "<function=",
    "<parameter=city>", "<parameter=", "</parameter>", "</function>", "```json", "function", "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", '{"city": ', '{"name": "weather", "arguments": ', "<|start|>",
    "assistant", "<|channel|>", "analysis", "to=weather", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|",
]  # fmt: skip


def cut_anywhere(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(
    st.sampled_from(["", *CALL_MARKS]),
    st.sampled_from(["", "marked", "begun", "channels", "continued"]),
    st.booleans(),
    st.lists(st.sampled_from(PARTS), max_size=12),
    st.data(),
)
def test_output_does_not_depend_on_piece_boundaries(
    calls: CallForm, thinking: Thinking, several: bool, parts: list[str], data: st.DataObject
) -> None:
    form, text = OutputForm(calls, TOOLS, several, thinking), "".join(parts)
    pieces = cut_anywhere(text, data)
    assert read(form, pieces) == read(form, [text]) == read(form, list(text))
    if not calls and not thinking:
        assert "".join(one.text for one in read(form, pieces) if isinstance(one, OutputText)) == text


@given(
    st.sampled_from(list(WRITTEN)),
    st.lists(st.dictionaries(st.text(), JSON, max_size=3), min_size=1, max_size=3),
    st.booleans(),
    st.data(),
)
def test_call_arguments_keep_their_json_text(
    form: CallForm, every: list[dict[str, object]], ascii_only: bool, data: st.DataObject
) -> None:
    """Pieces and the spelling of JSON change no call."""
    spaces = data.draw(st.sampled_from([None, 1]))
    written = [json.dumps(arguments, ensure_ascii=ascii_only, indent=spaces) for arguments in every]
    text = f"Text.{WRITTEN[form](written)}" if form not in ("llama3", "mistral") else WRITTEN[form](written)
    pieces = cut_anywhere(text, data)
    calls = [one for one in read(OutputForm(form, TOOLS), pieces) if isinstance(one, Call)]
    assert calls == [Call(index, "weather", arguments) for index, arguments in enumerate(written)]


@given(st.dictionaries(st.text(st.characters(exclude_characters=">\n"), min_size=1), st.text()), st.data())
def test_tagged_parameters_become_json_arguments(values: dict[str, str], data: st.DataObject) -> None:
    values = {key.strip(): value for key, value in values.items() if key.strip() and "<" not in key + value}
    tool = ReadTool("weather", tuple(values))
    parameters = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items()]
    text = f"<tool_call>\n<function=weather>\n{''.join(parameters)}</function>\n</tool_call>"
    pieces = cut_anywhere(text, data)
    (only,) = read(OutputForm("qwen-xml", (tool,)), pieces)
    assert only == Call(0, "weather", json.dumps(values, ensure_ascii=False))


@pytest.mark.parametrize("text", [
    "{}", "[]", '{"a": [1, -2.5e+7, 0, true, false, null, "\\u00e9\\n"]}', '""', "[[[]]]", "1 ", "1.7e308 ", "", "{",
    "[1,]", "[,1]", "{,}", '{"a"}', '{"a": 1,}', "01 ", "1. ", "+1 ", "1e ", "NaN", "tru ", '"\n"', '"\\x"',
    '"\\u12g4"', "{1: 2}", "[1 2]", '{"a" 1}', "]", "[}", "." + "1" * 9, "٣ ", "'a'", "nulll",
])  # fmt: skip
def test_json_scan_agrees_with_python(text: str) -> None:
    """The scan says the same as Python's reader."""
    for pieces in ([text], list(text)):
        scan, held, taken = JsonScan(), "", ""
        for piece in pieces:
            held += piece
            count = scan.feed(held)
            taken, held = taken + held[:count], held[count:]
        is_json = scan.finish() and not held.strip()
        try:
            value = json.loads(text, parse_constant=_refuse)
        except ValueError:
            assert not is_json
            continue
        assert is_json
        assert json.loads(taken) == value


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def test_json_scan_rejects_what_python_cannot_round_trip() -> None:
    broken = ("]", "}", ",", "x", "[" * 200)
    for text in (*broken, "1" * 5000, "[1e999]", "[-1e309]", f"[{'1' * 400}]"):
        scan = JsonScan()
        scan.feed(text)
        assert scan.broken or text not in broken
        assert not scan.finish()


FORMS: dict[str, CallForm] = {
    "{{ '<tool_call>' }}{{ tools }}": "hermes",
    "[AVAILABLE_TOOLS]{{ tools }} [TOOL_CALLS]": "mistral",
    '{"name": function name, "parameters": dictionary of argument name and its value}': "llama3",
    "{{ '[TOOL_CALLS]' + name + '[ARGS]' }}": "mistral-args",
    "<tool_call>\\n<function=' + name + '>\\n<parameter=": "qwen-xml",
    "'<｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n```json\\n'": "deepseek-v3",
    "'<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments": "deepseek-v31",
    "{{ tools }} <|start|>assistant<|channel|>commentary json<|message|>": "harmony",
    "{{ tools }} <function=name>{": "",
    "{{ tools }} <tool_call>name<arg_key>": "",
    "{{ tools }}": "",
}


def test_call_form_follows_from_template() -> None:
    assert {template: call_form(template) for template in FORMS} == FORMS
