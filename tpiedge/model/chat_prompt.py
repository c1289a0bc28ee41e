"""Renders a conversation as transformers does. If the template refuses the messages or drops a system message, tries
other forms of the messages (`_forms`)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Final

from tpiedge.model.call_reader import short_call_id
from tpiedge.model.template import CALLS_AS_OBJECTS, ChatTemplate, TemplateHabits, TemplateRefusal

TemplateMessage = Mapping[str, Any]
"""A message of an API. A call's `arguments` are GivenArguments; `content` may be None beside calls."""

_MARK: Final = "BEGUN_ANSWER_ENDS_HERE "  # a template that trims texts drops the space
_REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class GivenArguments:
    text: str
    value: object  # the parsed text, or the text itself if it is no JSON object


def chat_prompt(
    template: ChatTemplate,
    messages: Sequence[TemplateMessage],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    begun: bool = False,
) -> str:
    """Renders a prompt. If `begun`, the last message is the beginning of the answer and the end of the prompt. Raises
    like `template.render`."""
    render = partial(template.render, tools=tools, variables=variables)
    calls = any(message.get("tool_calls") for message in messages)
    habits = template.habits(tools) if calls else CALLS_AS_OBJECTS
    given = [_as_template_takes(message, habits) for message in messages]
    if habits.single_calls:
        given = _with_single_calls(given)
    if not begun:
        return _rendered(render, given)
    last = given[-1]
    marked = [*given[:-1], {**last, "content": last["content"] + _MARK}]
    try:
        text = _rendered(partial(render, add_generation_prompt=False), marked)
    except TemplateRefusal:
        text = ""
    at = text.rfind(_MARK.rstrip())
    if at >= 0:
        return text[:at] if text.startswith(_MARK, at) else text[:at].rstrip()
    # The template drops or refuses the last turn: its text follows the generation prompt.
    return _rendered(render, given[:-1]) + str(last["content"])


def _rendered(render: Callable[..., str], messages: Sequence[TemplateMessage]) -> str:
    refusal, usable = None, None
    systems = [index for index, message in enumerate(messages) if message["role"] == "system"]
    for form in _forms(messages):
        try:
            text = render(form)
        except TemplateRefusal as error:
            refusal = refusal or error
            continue
        # The text must have all system messages, unless the only one is the first message.
        if systems in ([], [0]) or all(messages[index]["content"].strip() in text for index in systems):
            return text
        usable = text if usable is None else usable
    if usable is not None:
        return usable
    assert refusal is not None
    raise refusal


def _as_template_takes(message: TemplateMessage, habits: TemplateHabits) -> TemplateMessage:
    found = dict(message)
    reasoning = next((message[key] for key in _REASONING_KEYS if message.get(key)), None)
    if reasoning is not None:
        found.update(dict.fromkeys(_REASONING_KEYS, reasoning))
    if message.get("tool_calls"):
        found["tool_calls"] = []
        for call in message["tool_calls"]:
            arguments: GivenArguments = call["function"]["arguments"]
            shown = arguments.text if habits.text_arguments else arguments.value
            found["tool_calls"].append({**call, "function": {**call["function"], "arguments": shown}})
        if not message["content"] and message["content"] not in habits.contents:
            found["content"] = habits.contents[0]
    return found


def _forms(messages: Sequence[TemplateMessage]) -> Iterator[Sequence[TemplateMessage]]:
    """Yields the messages unchanged, then with each change alone, then with more and more changes."""
    tried: list[Sequence[TemplateMessage]] = [messages]
    yield messages
    messages = _with_short_ids(messages)
    alone = [messages, *(change(messages) for change in _CHANGES)]
    for form in (*alone, *accumulate(_CHANGES, lambda found, change: change(found), initial=messages)):
        if form not in tried:
            tried.append(form)
            yield form


def _with_short_ids(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:

    def short(identity: str) -> str:
        fits = len(identity) == 9 and identity.isascii() and identity.isalnum()
        return identity if fits else short_call_id(identity)

    found: list[TemplateMessage] = []
    for message in messages:
        if message.get("tool_calls"):
            calls = [{**call, "id": short(call["id"])} for call in message["tool_calls"]]
            found.append({**message, "tool_calls": calls})
        elif message.get("tool_call_id"):
            found.append({**message, "tool_call_id": short(message["tool_call_id"])})
        else:
            found.append(message)
    return found


def _with_one_system(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    systems = [message for message in messages if message["role"] == "system"]
    if not systems:
        return [*messages]
    return [_joined(systems), *(message for message in messages if message["role"] != "system")]


def _with_joined_turns(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    found: list[TemplateMessage] = []
    for message in messages:
        same = bool(found) and message["role"] == found[-1]["role"] in ("user", "assistant")
        if same and not found[-1].get("tool_calls"):
            found[-1] = _joined([found[-1], message])
        else:
            found.append(message)
    return found


def _with_words_in_results(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    found: list[TemplateMessage] = []
    for message in messages:
        # Some templates want an assistant's turn in between.
        if found and (found[-1]["role"], message["role"]) == ("tool", "user"):
            found[-1] = {**found[-1], "content": _texts([found[-1], message])}
        else:
            found.append(message)
    return found


def _with_single_calls(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    # For templates like Llama 3's.
    found: list[TemplateMessage] = []
    results: list[TemplateMessage] = []
    for message in reversed(messages):
        if message["role"] == "tool":
            results.insert(0, message)
            continue
        turn = _one_by_one(message, results) if message.get("tool_calls") else [message, *results]
        found, results = [*turn, *found], []
    return [*results, *found]


def _one_by_one(message: TemplateMessage, results: Sequence[TemplateMessage]) -> Iterator[TemplateMessage]:
    left = [*results]
    for number, call in enumerate(message["tool_calls"]):
        alone = {"role": message["role"], "content": message["content"] and "", "tool_calls": [call]}
        yield {**message, "tool_calls": [call]} if number == 0 else alone
        own = [result for result in left if result["tool_call_id"] == call["id"]]
        left = [result for result in left if result not in own]
        yield from own
    yield from left


def _with_content_in_reasoning(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    # For templates like gpt-oss's, which take one of both beside calls.
    return [
        {
            **message,
            **dict.fromkeys(_REASONING_KEYS, f"{message['thinking']}\n\n{message['content']}"),
            "content": "",
        }
        if message.get("tool_calls") and message.get("thinking") and message["content"]
        else message
        for message in messages
    ]


def _with_system_in_a_turn(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    # For templates without a system role.
    if len(messages) < 2 or (messages[0]["role"], messages[1]["role"]) != ("system", "user"):
        return [*messages]
    return [{**messages[1], "content": _texts(messages[:2])}, *messages[2:]]


_CHANGES: Final[Sequence[Callable[[Sequence[TemplateMessage]], list[TemplateMessage]]]] = (
    _with_one_system, _with_joined_turns, _with_words_in_results, _with_single_calls, _with_content_in_reasoning,
    _with_system_in_a_turn,
)  # fmt: skip


def _joined(messages: Sequence[TemplateMessage]) -> TemplateMessage:
    found = {key: value for message in messages for key, value in message.items()}
    found["content"] = _texts(messages)
    return found


def _texts(messages: Sequence[TemplateMessage]) -> str:
    return "\n\n".join(message["content"] for message in messages if message["content"])
