"""What models say beside the answer: calls of tools, and their thoughts. Pure.

A model writes both into its text, in the form that its chat template taught it:

- `hermes` (Hermes, Qwen): `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, several of them;
- `llama3`: `{"name": ..., "parameters": {...}}` as the whole answer, `;` between several, maybe after `<|python_tag|>`;
- `mistral`: `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`.

Thoughts are between `<think>` and `</think>` at the answer's beginning; some templates open them in the prompt.

Laws:
1. What is said, with neighbouring texts of a kind joined, does not depend on how the text is cut into pieces.
2. Without calls and thoughts the content is the text. What looks like a call and is none (no JSON, no tool of that
   name, no object of arguments, not finished) is content, as it was written.
3. White space around calls and thoughts is left out.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

__all__ = [
    "NO_THOUGHTS",
    "CallForm",
    "Said",
    "SpeechForm",
    "SpeechReader",
    "SpokenText",
    "Thinking",
    "ToolCall",
    "call_form",
]

CallForm = Literal["", "hermes", "llama3", "mistral"]
"""How calls are written; "": not at all."""
Thinking = Literal["", "marked", "begun"]
"""Whether there may be thoughts: none, between both marks, or from the answer's first character on."""

_OPEN_THOUGHT: Final = "<think>"
_CLOSE_THOUGHT: Final = "</think>"
NO_THOUGHTS: Final = f"{_CLOSE_THOUGHT}\n\n"
"""What a prompt that begins the thoughts goes on with where there are to be none."""
_OPENERS: Final = {"hermes": "<tool_call>", "llama3": "<|python_tag|>", "mistral": "[TOOL_CALLS]"}
#: What a call may end with that says nothing.
_CLOSERS: Final = {"hermes": "</tool_call>", "llama3": ";", "mistral": ""}
#: How a call may begin without an opener, where nothing else was said before it.
_BARE: Final = {"hermes": "", "llama3": "{", "mistral": "["}
_SPACE: Final = " \t\r\n"


@dataclass(frozen=True, slots=True)
class SpeechForm:
    """How a model speaks. `tools`: the names that it may call; `several`: more than one call."""

    calls: CallForm = ""
    tools: Sequence[str] = ()
    several: bool = True
    thinking: Thinking = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts that separate; where one is a special token, it must not be left out."""
        calls = (_OPENERS[self.calls], _CLOSERS[self.calls]) if self.calls else ()
        return (*filter(None, calls), *((_OPEN_THOUGHT, _CLOSE_THOUGHT) if self.thinking else ()))


@dataclass(frozen=True, slots=True)
class SpokenText:
    """A part of the answer, or of the thoughts before it."""

    text: str
    thought: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`index`: from 0; `arguments`: a JSON object."""

    index: int
    name: str
    arguments: str


Said = SpokenText | ToolCall


def call_form(template: str) -> CallForm:
    """How a chat template, which shows tools to its model, has it write calls; "" where that is not known here."""
    if "<function=" in template or "<arg_key>" in template or "[ARGS]" in template:
        return ""
    if _OPENERS["hermes"] in template:
        return "hermes"
    if _OPENERS["mistral"] in template:
        return "mistral"
    return "llama3" if '"parameters":' in template else ""


def thinking_after(prompt: str, template: str) -> Thinking:
    """How an answer to the prompt, which the template has made, may begin with thoughts."""
    if prompt.rstrip(_SPACE).endswith(_OPEN_THOUGHT):
        return "begun"
    return "marked" if _OPEN_THOUGHT in template or _CLOSE_THOUGHT in template else ""


class SpeechReader:
    """Of one answer."""

    def __init__(self, form: SpeechForm) -> None:
        self._form = form
        self._opener = _OPENERS.get(form.calls, "")
        self._closer = _CLOSERS.get(form.calls, "")
        #: Whether a call may begin without its opener.
        self._bare = _BARE.get(form.calls, "")
        self._held = ""
        self._raw = ""  # what was taken for the beginning of a call
        self._scan = _JsonScan()
        self._said: list[Said] = []
        self.calls = 0
        """That were said so far."""
        self._state = {"": self._text, "marked": self._before_thought, "begun": self._first_thought}[
            form.thinking
        ]

    def feed(self, text: str) -> list[Said]:
        """What is certain with this piece."""
        self._held += text
        return self._run(False)

    def finish(self) -> list[Said]:
        """The rest, at the answer's end."""
        return self._run(True)

    def _run(self, end: bool) -> list[Said]:
        while self._state(end):
            pass
        said, self._said = self._said, []
        return said

    # Each state takes what it can of the held text, and returns whether another one is to go on.

    def _before_thought(self, end: bool) -> bool:
        rest = self._held.lstrip(_SPACE)
        if rest.startswith(_OPEN_THOUGHT):
            self._held, self._state = rest[len(_OPEN_THOUGHT) :], self._first_thought
            return True
        if _OPEN_THOUGHT.startswith(rest) and not end:
            return False
        self._state = self._text
        return True

    def _first_thought(self, end: bool) -> bool:
        return self._skip_space(end, self._thought)

    def _thought(self, end: bool) -> bool:
        at = self._held.find(_CLOSE_THOUGHT)
        if at >= 0:
            self._say(self._held[:at].rstrip(_SPACE), thought=True)
            self._held, self._state = self._held[at + len(_CLOSE_THOUGHT) :], self._after_thought
            return True
        certain = len(self._held.rstrip(_SPACE)) if end else _certain(self._held, _CLOSE_THOUGHT)
        self._say(self._held[:certain], thought=True)
        self._held = "" if end else self._held[certain:]
        return False

    def _after_thought(self, end: bool) -> bool:
        return self._skip_space(end, self._text)

    def _text(self, end: bool) -> bool:
        if not self._form.calls:
            self._say(self._held)
            self._held = ""
            return False
        if self._bare:
            rest = self._held.lstrip(_SPACE)
            if self._opener.startswith(rest) and not end:
                return False
            if rest.startswith(self._bare) and not rest.startswith(self._opener):
                return self._begin_call(self._held[: len(self._held) - len(rest)], rest)
        at = self._held.find(self._opener)
        if at >= 0:
            before = self._held[:at].rstrip(_SPACE)
            self._say(before)
            begun = at + len(self._opener)
            return self._begin_call(self._held[len(before) : begun], self._held[begun:])
        if end:
            self._say(self._held.rstrip(_SPACE) if self.calls else self._held)
            self._held = ""
            return False
        certain = _certain(self._held, self._opener)
        self._say(self._held[:certain])
        self._held = self._held[certain:]
        return False

    def _begin_call(self, raw: str, rest: str) -> bool:
        self._raw, self._held, self._state = raw, rest, self._call
        self._scan = _JsonScan()
        return True

    def _call(self, end: bool) -> bool:
        stop = self._scan.stop(self._held)
        if stop is None and not end:
            return False
        taken = self._held if stop is None else self._held[:stop]
        calls = None if not stop else _calls(taken, self._form.tools)
        if calls is None:
            self._say(self._raw + taken)
            self._state = self._text
        else:
            for name, arguments in calls if self._form.several else calls[: 1 - min(1, self.calls)]:
                self._said.append(ToolCall(self.calls, name, arguments))
                self.calls += 1
            self._state = self._after_call
        self._held = self._held[len(taken) :]
        return True

    def _after_call(self, end: bool) -> bool:
        rest = self._held.lstrip(_SPACE)
        if self._closer and rest.startswith(self._closer):
            self._held = rest[len(self._closer) :]
            return self._skip_space(end, self._text)
        if self._closer.startswith(rest) and rest and not end:
            return False
        return self._skip_space(end, self._text) if rest or end else False

    def _skip_space(self, end: bool, following: Any) -> bool:
        self._held = self._held.lstrip(_SPACE)
        if not self._held and not end:
            return False
        self._state = following
        return True

    def _say(self, text: str, *, thought: bool = False) -> None:
        if text:
            self._said.append(SpokenText(text, thought))
            if not thought:
                self._bare = ""


class _JsonScan:
    """Finds where a JSON object or array ends, each character of which is looked at once."""

    def __init__(self) -> None:
        self._at = 0
        self._depth = 0
        self._quoted = False

    def stop(self, text: str) -> int | None:
        """Where it ends in the text, of which more has come since the last time; None where that is not known yet, and
        0 where the text begins with none."""
        while self._at < len(text):
            mark = text[self._at]
            if self._depth == 0 and mark not in _SPACE and mark not in "{[":
                return 0
            if mark == "\\" and self._quoted:
                if self._at + 1 == len(text):
                    return None
                self._at += 1
            elif mark == '"':
                self._quoted = not self._quoted
            elif not self._quoted:
                self._depth += (mark in "{[") - (mark in "}]")
                if self._depth == 0 and mark in "}]":
                    return self._at + 1
            self._at += 1
        return None


def _calls(text: str, tools: Sequence[str]) -> list[tuple[str, str]] | None:
    """Names and arguments; None where something is no call."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        found = list(_each(value if isinstance(value, list) else [value], tools))
    except (ValueError, TypeError, RecursionError):
        return None
    return found or None


def _each(values: Sequence[Any], tools: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Raises ValueError, TypeError."""
    for value in values:
        if not isinstance(value, dict) or value.get("name") not in tools:
            raise ValueError
        arguments = value.get("arguments", value.get("parameters"))
        if isinstance(arguments, str):
            arguments = json.loads(arguments, parse_constant=_refuse)
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise TypeError
        yield value["name"], json.dumps(arguments, ensure_ascii=False)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _certain(text: str, mark: str) -> int:
    """How much of the text is no beginning of the mark, nor white space before that."""
    longest = min(len(mark) - 1, len(text))
    partial = next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
    return len(text[: len(text) - partial].rstrip(_SPACE))
