"""Separates tool calls (see `call_reader`) and reasoning from the text of an answer. Pure. Reasoning stands between
`<think>` and `</think>` at the answer's beginning; some templates open it in the prompt.

Laws:
1. However the text is cut into pieces, the output is the same but for its division.
2. Without calls and reasoning the content is the text. Text like a call, but without JSON, such a tool or an object of
   arguments, is content. A call that breaks off after its beginning ends; what follows is content.
3. White space around calls and reasoning is left out.
4. If an answer was cut, or must be calls, nothing from the mark that opens a call on is content.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from tpiedge.model.call_reader import (
    CALL_MARKS,
    CallArguments,
    CallBegun,
    CallEnded,
    CallForm,
    CallMarks,
    CallReader,
    ReadTool,
)
from tpiedge.model.held_text import SPACE, Mismatch, TextEnded, Waiting, begun_length

Thinking = Literal["", "marked", "begun"]
"""The reasoning of an answer: none, between both marks, or from the first character on."""

_OPEN_THOUGHT: Final = "<think>"
_CLOSE_THOUGHT: Final = "</think>"
THOUGHT_MARKS: Final = (_OPEN_THOUGHT, _CLOSE_THOUGHT)
NO_THOUGHTS: Final = f"{_CLOSE_THOUGHT}\n\n"  # ends the reasoning that a prompt has opened


@dataclass(frozen=True, slots=True)
class SpeechForm:
    """The form of a model's answers. `several` allows more than one call; with `required` the answer is calls alone."""

    calls: CallForm = ""
    tools: tuple[ReadTool, ...] = ()
    several: bool = True
    thinking: Thinking = ""
    required: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks that the text must show even if they are special tokens."""
        calls = CALL_MARKS[self.calls].separating if self.calls else ()
        return (*calls, *(THOUGHT_MARKS if self.thinking else ()))


@dataclass(frozen=True, slots=True)
class SpokenText:
    text: str
    thought: bool = False  # reasoning


Said = SpokenText | CallBegun | CallArguments | CallEnded


def thinking_after(prompt: str, template: str, begun: str = "") -> Thinking:
    """Returns how an answer to this prompt of `template` may begin with reasoning, which the prompt may have opened.
    `begun` is the part of the answer that the prompt ends with."""
    before = prompt.rstrip(SPACE).removesuffix(begun.strip(SPACE)).rstrip(SPACE)
    opened = before.endswith(_OPEN_THOUGHT) and _CLOSE_THOUGHT not in begun
    if opened or begun.rfind(_OPEN_THOUGHT) > begun.rfind(_CLOSE_THOUGHT):
        return "begun"
    return "marked" if _OPEN_THOUGHT in template or _CLOSE_THOUGHT in template else ""


class SpeechReader(CallReader):
    def __init__(self, form: SpeechForm) -> None:
        super().__init__(form.calls, form.tools, form.several)
        self._marks = CALL_MARKS[form.calls] if form.calls else None
        self._required = form.required
        self._cut = False
        self._told = False  # some content was reported
        self._reading = self._answer(form.thinking)

    def feed(self, text: str, last: str | None = None) -> list[Said]:
        """Returns what is certain with this piece. `last` is the answer's finish reason, with its last piece."""
        self._held.text += text
        next(self._reading, None)
        if last is not None:
            self._held.ended, self._cut = True, last == "length"
            next(self._reading, None)
        said, self._said = self._said, []
        return said

    def feed_whole(self, text: str, last: str | None = None) -> Iterator[SpokenText | CallEnded]:
        """Yields texts and whole calls. A broken call is text, or nothing if the answer was cut or must be calls."""
        for said in self.feed(text, last):
            if isinstance(said, CallEnded) and said.broken:
                if not (self._cut or self._required):
                    yield SpokenText(said.broken)
            elif isinstance(said, SpokenText | CallEnded):
                yield said

    def ending(self, last: str | None) -> str | None:
        """Returns the finish reason: "tool_calls" if the answer ends with calls."""
        return "tool_calls" if last == "stop" and self.calls and not self.broken else last

    def _answer(self, thinking: Thinking) -> Waiting[None]:
        held = self._held
        if thinking == "marked":
            yield from held.spaces()
            if not (yield from held.one_of(_OPEN_THOUGHT)):
                thinking, held.text = "", held.raw + held.text
        held.raw = ""
        if thinking:
            yield from held.spaces()
            yield from self._thoughts()
            yield from held.spaces()
            held.raw = ""
        if self._marks is not None:
            yield from self._contents(self._marks)
            return
        while True:
            self._say(held.take(len(held.text)))
            yield

    def _thoughts(self) -> Waiting[None]:
        held = self._held
        while (at := held.text.find(_CLOSE_THOUGHT)) < 0:
            self._say(held.take(_certain(held.text, _CLOSE_THOUGHT)), thought=True)
            if held.ended:
                self._say(held.take(len(held.text)).rstrip(SPACE), thought=True)
                return
            yield
        self._say(held.take(at).rstrip(SPACE), thought=True)
        held.take(len(_CLOSE_THOUGHT))

    def _contents(self, marks: CallMarks) -> Waiting[None]:
        held = self._held
        while (opener := (yield from self._before_call(marks))) is not None:
            try:
                yield from self._read_call(opener)
                yield from held.spaces()
                while (yield from held.one_of(*marks.closers)):
                    yield from held.spaces()
            except TextEnded:
                if self._cut and (opener or self.calls):
                    return
                self._say(held.raw)
            except Mismatch:
                self._say(held.raw)
        rest = held.take(len(held.text))
        begun = any(mark.startswith(rest.strip(SPACE)) for mark in marks.separating)
        if not (begun and self._cut and (self.calls or not self._told)):
            self._say(rest.rstrip(SPACE) if self.calls else rest)

    def _before_call(self, marks: CallMarks) -> Waiting[str | None]:
        """Reports the text before the next call. Returns the call's opener, taken last; None at the end."""
        held = self._held
        while True:
            rest = held.text.lstrip(SPACE)
            begun = not held.ended and any(mark.startswith(rest) for mark in marks.openers)
            opened = begun or rest.startswith(marks.openers)
            bare = "" if self._told else marks.bare
            if bare and rest.startswith(bare) and not opened:
                held.take(len(held.text) - len(rest))
                return ""
            found = [(at, mark) for mark in marks.openers if (at := held.text.find(mark)) >= 0]
            if found:
                at, mark = min(found)
                self._say(held.take(len(held.text[:at].rstrip(SPACE))))
                held.take(len(held.text) - len(held.text.lstrip(SPACE)) + len(mark))
                return mark
            if held.ended:
                return None
            if not (bare and begun):
                self._say(held.take(_certain(held.text, *marks.openers)))
            yield

    def _say(self, text: str, *, thought: bool = False) -> None:
        self._held.raw = ""
        if text and (thought or not self._required):
            self._said.append(SpokenText(text, thought))
            self._told = self._told or not thought


def _certain(text: str, *marks: str) -> int:
    """Counts the characters before the possible beginning of a mark and white space before it."""
    return len(text[: len(text) - begun_length(text, *marks)].rstrip(SPACE))
