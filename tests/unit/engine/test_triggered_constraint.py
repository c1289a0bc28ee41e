import itertools
import json
import logging
import signal
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from tests.fakes.service import FakeService
from tests.unit.engine.test_grammars import Child
from tests.unit.model.vocabularies import byte_level
from tpiedge.api.call_grammars import begun_call_grammar, call_or_form_grammar
from tpiedge.api.grammar_schema import GrammarSchema
from tpiedge.api.tools import ParsedTools
from tpiedge.engine.constraints import TriggeredConstraint, start_constraint
from tpiedge.engine.grammars import Grammars, await_any
from tpiedge.model.call_reader import CALL_MARKS, CallBegun, CallEnded, CallForm
from tpiedge.model.output import OutputForm, OutputParser
from tpiedge.model.tokenizer import Tokenizer
from tpiedge.wire.requests import GenerationRequest, Grammar

END = 2
LIMIT_S = 30.0
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city"],
    "additionalProperties": False,
}


def tools_of(schemas: Mapping[str, Mapping[str, Any]], required: Sequence[str] = ()) -> ParsedTools:
    shown = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in schemas.items()
    ]
    return ParsedTools(tuple(shown), tuple(required))


TOOLS = tools_of(
    {
        "weather": WEATHER,
        "add": {"type": "object", "properties": {}, "additionalProperties": False},
        "odd": {"type": "array", "uniqueItems": True},
        "open": {"type": "object"},
    },
    ("weather", "add"),
)
SEP, BEGIN = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>"
#: Form: (what opens a call, calls that are allowed to their end, what is not allowed from | on).
WRITTEN: dict[CallForm, tuple[str, list[str], list[str]]] = {
    "hermes": (
        "<tool_call>",
        [
            '\n{"name": "weather", "arguments": {"city": "Paris", "days": 3, "unit": "C"}}',
            '{"name":"weather","arguments":{"city":"<tool_call>"}}',
            ' {\n "name": "add",\n "arguments": {}\n}',
        ],
        [
            '\n{"name": "|rm", "arguments": {}}',
            '\n{"name": "weather", "arguments": {|}}',
            '\n{"name": "weather", "arguments": {"city": |7}}',
            '\n{"name": "weather", "arguments": {"city": "x", "|wind": 1}}',
            "\n|None",
        ],
    ),
    "llama3": (
        "<|python_tag|>",
        ['{"name": "weather", "parameters": {"city": "Paris"}}'],
        ['{"name": "weather", "|arguments": {}}', "|print(1)"],
    ),
    "mistral": (
        "[TOOL_CALLS]",
        [' [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "add", "arguments": {}}]'],
        ["[|]", '[{"name": "add", "arguments": |[]}]'],
    ),
    "mistral-args": (
        "[TOOL_CALLS]",
        ['weather[ARGS]{"city": "Paris"}', 'weather[CALL_ID]abcdefghi[ARGS] {"city":"Paris"}'],
        ["|rm[ARGS]{}", "weather[ARGS]{|}", "weather|{}"],
    ),
    "qwen-xml": (
        "<tool_call>",
        [
            "\n<function=weather>\n<parameter=city>\nNew\n<York>\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
            "<parameter=unit>\nC\n</parameter>\n</function>",
            "<function=add></function>",
            "<function=open>\n<parameter=x>\n1\n</parameter>\n<parameter=y>2</parameter></function>",
        ],
        [
            "\n<function=|rm>",
            "\n<function=add>\n<|parameter=x>",
            "\n<function=weather>\n<|/function>",
            "\n<function=weather>\n<parameter=city>x</parameter>\n<parameter=days>\n|many",
            "\n<function=weather>\n<parameter=city>x</parameter>\n<parameter=unit>\n|K",
        ],
    ),
    "deepseek-v3": (
        BEGIN,
        [f'function{SEP}weather\n```json\n{{"city": "Paris"}}'],
        [f"|weather{SEP}", f"function{SEP}|rm", f"function{SEP}weather\n```json\n|[]"],
    ),
    "deepseek-v31": (
        BEGIN,
        [f'weather{SEP}{{"city": "Paris"}}'],
        [f"|function{SEP}", f"weather{SEP}{{|}}"],
    ),
    "harmony": (
        "<|channel|>",
        [
            'commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}',
            "analysis to=functions.add json<|message|> {}",
            "commentary to=functions.add<|message|>{}",
        ],
        [
            "commentary to=|python",
            "commentary to=functions.|rm",
            "commentary to=functions.weather <|constrain|>json<|message|>{|}",
            "|Hello",
        ],
    ),
}


class Model:
    def __init__(self, folder: Path) -> None:
        backend = byte_level()
        marks = {mark for one in CALL_MARKS.values() for mark in one.separating}
        marks = marks - {";", "```", "<function="} | {"<think>", "</think>"}
        backend.add_tokens(
            [AddedToken(mark, special=mark.startswith("["), normalized=False) for mark in sorted(marks)]
        )
        backend.save(str(folder / "tokenizer.json"))
        self.tokenizer = Tokenizer.open(folder, here=True)
        self.rows = len(self.tokenizer.vocabulary)
        self.grammars = Grammars(folder, self.rows)
        self.service = FakeService(self.tokenizer, vocab_size=self.rows)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special=False)

    def grammar(self, form: CallForm, tools: ParsedTools = TOOLS, *, thinking: bool = False) -> Grammar:
        grammar = begun_call_grammar(tools, form, "marked" if thinking else "", self.service)
        assert grammar is not None
        return grammar

    def begin(
        self, grammar: Grammar, answer: Sequence[int] = (), prompt: str = "hello", stop: int = END
    ) -> TriggeredConstraint:
        request = GenerationRequest(
            "r", tuple(self.ids(prompt)), 999, stop_ids=(stop,), answer_ids=tuple(answer), grammar=grammar
        )
        constraint = start_constraint(self.grammars, request)
        assert isinstance(constraint, TriggeredConstraint)
        while not constraint.ready():
            await_any([constraint], LIMIT_S)
        return constraint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    pytest.importorskip("llguidance", reason="software: llguidance is not installed")
    model = Model(tmp_path_factory.mktemp("model"))
    model.begin(model.grammar("hermes")).close()  # started here, the process is not a test's
    yield model
    model.grammars.close()


def draw(constraint: TriggeredConstraint, ids: Sequence[int]) -> list[bool | None]:
    found: list[bool | None] = []
    for token in ids:
        constraint.guess(())
        mask = next(iter(constraint.masks(shared=False)))
        found.append(None if mask is None else bool(mask[token // 8] >> token % 8 & 1))
        if found[-1] is False:
            break
        constraint.accept([token])
    return found


@pytest.mark.parametrize("form", WRITTEN)
def test_only_tool_calls_are_constrained(model: Model, form: CallForm) -> None:
    opener, calls, _ = WRITTEN[form]
    with closing(model.begin(model.grammar(form))) as constraint:
        for call in calls:
            free = draw(constraint, model.ids(f'Some "text" {{é世: <tool> </s> {opener}'))
            assert set(free) == {None}
            assert set(draw(constraint, model.ids(call))) == {True}
            assert set(draw(constraint, model.ids("\n}</tool_call>] and so on</s>"))) == {None}
            tools = TOOLS.read_as("qwen-xml")
            said = OutputParser(OutputForm(form, tools)).feed(opener + call)
            assert isinstance(said[0], CallBegun)
            assert isinstance(said[-1], CallEnded)
            assert not said[-1].broken


@pytest.mark.parametrize("form", WRITTEN)
def test_invalid_tool_calls_cannot_be_drawn(model: Model, form: CallForm) -> None:
    opener, _, refused = WRITTEN[form]
    for text in refused:
        good, _, bad = text.partition("|")
        with closing(model.begin(model.grammar(form))) as constraint:
            assert set(draw(constraint, model.ids(f"Text {opener}"))) == {None}
            assert set(draw(constraint, model.ids(good))) <= {True}
            assert draw(constraint, [END]) == [False]
            assert draw(constraint, [model.ids(bad)[0]]) == [False], text


ANSWER = {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]}
#: The form of an answer: what is of it, and what is not from | on.
ANSWERS: list[tuple[Grammar, str, str]] = [
    (Grammar("json", json.dumps(GrammarSchema(ANSWER).schema)), '{"said": "x"}', '{"said": |1'),
    (Grammar("regex", "[0-9]{2}/[a-z]"), "12/a", "12|a"),
    (Grammar("lark", 'start: "yes" | other\nother: /no+/'), "nooo", "n|e"),
    (Grammar("lark", 'root ::= "- {" item+ "}"\nitem ::= [a-c] # one'), "- {abc}", "- {|d"),
]


@pytest.mark.parametrize(
    ("form", "answer", "good", "bad"),
    [(form, *answer) for form, answer in zip(WRITTEN, itertools.cycle(ANSWERS), strict=False)],
)
def test_structured_answer_may_be_a_tool_call_instead(
    model: Model, form: CallForm, answer: Grammar, good: str, bad: str
) -> None:
    tools = replace(tools_of({"add": {"type": "object", "properties": {}}}), several=False)
    grammar = call_or_form_grammar(tools, form, answer, "response_format", model.service)
    assert grammar is not None
    call = REQUIRED_CALLS[form]
    head = "<|channel|>final<|message|>" if form == "harmony" else ""
    assert whole(model, grammar, call)
    assert whole(model, grammar, head + good)
    right, wrong = f"{head}{bad}".rsplit("|", 1)
    assert drawn(model, grammar, right + wrong)[: len(model.ids(right))] == [True] * len(model.ids(right))
    for text in (right + wrong, call[:-1] + "z", "It is"):
        assert False in drawn(model, grammar, text)


#: As a required call of a tool without parameters is written.
REQUIRED_CALLS: dict[CallForm, str] = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>',
    "llama3": '{"name": "add", "parameters": {}}',
    "mistral": '[{"name": "add", "arguments": {}}]',
    "mistral-args": "[TOOL_CALLS]add[ARGS]{}",
    "qwen-xml": "<tool_call>\n<function=add>\n</function>\n</tool_call>",
    "deepseek-v3": f"<｜tool▁calls▁begin｜>{BEGIN}function{SEP}add\n```json\n{{}}\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek-v31": f"<｜tool▁calls▁begin｜>{BEGIN}add{SEP}{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "harmony": "<|channel|>commentary to=functions.add <|constrain|>json<|message|>{}",
}


def drawn(model: Model, grammar: Grammar, text: str, end: Sequence[int] = ()) -> list[bool]:
    request = GenerationRequest("r", (1,), 999, stop_ids=(END,), grammar=grammar)
    found: list[bool] = []
    with closing(model.grammars.start_compile(request, again=False)) as constraint:
        for token in [*model.ids(text), *end]:
            (mask,) = constraint.masks(shared=False)
            found.append(bool(mask[token // 8] >> token % 8 & 1))
            if not found[-1]:
                break
            constraint.accept([token])
    return found


def whole(model: Model, grammar: Grammar, text: str) -> bool:
    return False not in drawn(model, grammar, text, (END,))


@pytest.mark.parametrize("header", ["analysis", "final", "commentary", "final <|constrain|>json"])
def test_other_messages_of_harmony_are_free_after_their_headers(model: Model, header: str) -> None:
    with closing(model.begin(model.grammar("harmony", thinking=True))) as constraint:
        assert set(draw(constraint, model.ids("<|channel|>"))) == {None}
        assert set(draw(constraint, model.ids(f"{header}<|message|>"))) == {True}
        assert set(draw(constraint, model.ids("Hm. {]<|end|><|start|>assistant<|channel|>"))) == {None}
        assert draw(constraint, model.ids("Hello")[:1]) == [False]


def test_several_required_calls_of_harmony_are_messages(model: Model) -> None:
    tools = tools_of({"add": {"type": "object", "properties": {}}}, ("add",))
    call = REQUIRED_CALLS["harmony"]
    for several in (True, False):
        grammar = call_or_form_grammar(
            replace(tools, several=several), "harmony", None, "tool_choice", model.service
        )
        assert grammar is not None
        assert whole(model, grammar, call)
        assert whole(model, grammar, f"{call}<|end|><|start|>assistant{call}") == several


def test_drafts_stop_where_a_tool_call_begins_or_ends(model: Model) -> None:
    opener, (call, *_), _ = WRITTEN["hermes"]
    ids = model.ids(f"Text {opener}{call}")
    begin = ids.index(model.ids(opener)[0])
    with closing(model.begin(model.grammar("hermes"))) as constraint:
        constraint.guess(ids)
        assert list(constraint.masks(shared=False)) == [None] * (begin + 1)
        constraint.accept(ids[: begin + 1])
        more = [*ids[begin + 1 :], *model.ids("\nand more"), END]
        constraint.guess(more)
        masks = list(constraint.masks(shared=False))
        assert len(masks) == len(ids) - begin
        assert all(mask is not None for mask in masks[:-1])
        assert masks[-1] is None
        constraint.accept(more[: len(masks)])
        assert constraint.forced() == ()
        constraint.guess([])
        assert list(constraint.masks(shared=False)) == [None]


def test_constraint_resumes_from_any_part_of_the_answer(model: Model) -> None:
    opener, (call, other, _), _ = WRITTEN["hermes"]
    ids = model.ids(f"Text {opener}{call}</tool_call> {opener}{other}")
    with closing(model.begin(model.grammar("hermes"))) as constraint:
        every = draw(constraint, ids)
    assert {True, None} == {*every}
    for cut in range(0, len(ids), 7):
        with closing(model.begin(model.grammar("hermes"), ids[:cut])) as again:
            assert draw(again, ids[cut:]) == every[cut:]


def constraint_with(child: Child, answer: Sequence[int]) -> TriggeredConstraint:
    grammar = Grammar("regex", "a*", begins=7)
    request = GenerationRequest("r", (1,), 99, stop_ids=(END,), answer_ids=tuple(answer), grammar=grammar)
    child.process.mask(0.0)
    return TriggeredConstraint(child.constraint, grammar, request)


def test_resumed_answer_waits_until_its_calls_are_replayed() -> None:
    with closing(Child(again=True)) as child:
        constraint = constraint_with(child, [5, 7, 8, 9, 6, 7, 3, 4])
        for guesses, kept in (([8, 9, 6, 7, 3, 4], 2), ([3, 4], 2)):
            assert not constraint.known()
            assert child.process.hear() == (b"b", array("I", guesses).tobytes())
            assert not constraint.ready()
            child.process.say(b"f", kept.to_bytes(4, "little"))
            child.process.mask(0.9)
        assert constraint.ready()
        assert draw(constraint, [5]) == [False]
    with closing(Child(again=True)) as child:
        constraint = constraint_with(child, [7, 7, 7])
        assert not constraint.ready()
        child.process.say(b"f", bytes(4))
        child.process.mask(0.0)
        assert not constraint.ready()
        child.process.say(b"f", (1).to_bytes(4, "little"))
        child.process.mask(0.0)
        assert constraint.ready()
        assert draw(constraint, [5]) == [False]


def test_answer_is_unconstrained_if_its_replay_fails() -> None:
    for why in ("time", "refusal", "end"):
        with closing(Child(again=True)) as child:
            constraint = constraint_with(child, [7, 5])
            for _ in range(3):
                assert not constraint.ready()
                child.clock.advance(9.9)
            if why == "time":
                child.clock.advance(0.4)
            elif why == "refusal":
                child.process.say(b"e", b"too much")
            else:
                child.process.end(-signal.SIGSEGV)
            assert constraint.ready()
            assert draw(constraint, [5, 7, 5]) == [None] * 3


def test_trigger_tokens_in_reasoning_begin_no_call(model: Model) -> None:
    opener, (call, *_), _ = WRITTEN["hermes"]
    grammar = model.grammar("hermes", thinking=True)
    for prompt, answer in (("hello", f"<think>Or {opener} no"), ("hello <think>\n", f"Or {opener} no")):
        with closing(model.begin(grammar, prompt=prompt)) as constraint:
            assert set(draw(constraint, model.ids(f"{answer}</think>\n{opener}"))) == {None}
            assert set(draw(constraint, model.ids(call))) == {True}


def test_failing_grammar_leaves_the_answer_unconstrained(
    model: Model, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpiedge.engine.constraints._log", logging.getLogger("tpiedge.engine"))
    opener = model.ids(WRITTEN["hermes"][0])
    wrong = Grammar("lark", "start: nothing_of_that_name", begins=opener[0])
    with closing(model.begin(wrong)) as constraint:
        assert set(draw(constraint, [*opener, *model.ids("rm -rf")])) == {None}
    assert start_constraint(model.grammars, GenerationRequest("r", (1,), 9, grammar=wrong)) is None
    refused, unending = (record.getMessage() for record in caplog.records)
    assert refused.startswith("calls of an answer are not kept to its tools: their grammar was refused")
    assert "do not ignore it" in unending
