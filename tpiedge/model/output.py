"""Separates tool calls (`call_reader`) and reasoning from an answer's text. Pure. Reasoning stands between `<think>`
and `</think>` at the answer's beginning; some templates open it in the prompt. `harmony.py` reads Harmony's messages.

Laws:
1. The cuts between pieces of text change only the cuts of the output.
2. Text outside calls and reasoning is content. A call with invalid JSON, an unknown tool or arguments other than an
   object is content, too. A begun call ends where it becomes invalid; later text is content.
3. White space around calls and reasoning is left out.
4. If a truncated answer ends within a call, the call's text is left out. If calls are required, no text is content.
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
    ReadTool,
    call_form,
)
from tpiedge.model.harmony import HarmonyReader
from tpiedge.model.held_text import SPACE, Mismatch, TextEnded, Waiting, begun_length

Thinking = Literal["", "marked", "begun", "channels", "continued"]
"""The reasoning of an answer: none, between both marks, or from the first character on. In Harmony's format, reasoning
is in messages ("channels"); the answer may continue a message of content ("continued")."""

_OPEN_REASONING: Final = "<think>"
_CLOSE_REASONING: Final = "</think>"
REASONING_MARKS: Final = (_OPEN_REASONING, _CLOSE_REASONING)


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The form of a model's answers. `several` allows more than one call; `required` allows only calls."""

    calls: CallForm = ""
    tools: tuple[ReadTool, ...] = ()
    several: bool = True
    thinking: Thinking = ""
    required: bool = False

    @property
    def has_messages(self) -> bool:
        """Whether the answer has Harmony's format."""
        return self.calls == "harmony" or self.thinking in ("channels", "continued")

    @property
    def marks(self) -> tuple[str, ...]:
        if self.has_messages:
            return CALL_MARKS["harmony"].separating
        calls = CALL_MARKS[self.calls].separating if self.calls else ()
        return (*calls, *(REASONING_MARKS if self.thinking else ()))


@dataclass(frozen=True, slots=True)
class OutputText:
    text: str
    reasoning: bool = False


OutputPart = OutputText | CallBegun | CallArguments | CallEnded


def thinking_after(prompt: str, template: str, begun: str = "") -> Thinking:
    """Returns how reasoning may begin after `prompt`. `begun` is the beginning of the answer, at the prompt's end."""
    if call_form(template) == "harmony":
        return "continued" if "<|message|>" in prompt.rpartition("<|start|>")[2] else "channels"
    before = prompt.rstrip(SPACE).removesuffix(begun.strip(SPACE)).rstrip(SPACE)
    opened = before.endswith(_OPEN_REASONING) and _CLOSE_REASONING not in begun
    if opened or begun.rfind(_OPEN_REASONING) > begun.rfind(_CLOSE_REASONING):
        return "begun"
    return "marked" if _OPEN_REASONING in template or _CLOSE_REASONING in template else ""


def end_of_reasoning(thinking: Thinking, *, tools: bool) -> str:
    """Returns what a prompt needs at its end if a grammar restricts the answer. The grammars of chats with `tools` have
    the headers of Harmony's messages."""
    if thinking == "begun":
        return f"{_CLOSE_REASONING}\n\n"
    if tools:
        return "<|end|><|start|>assistant" if thinking == "continued" else ""
    return "<|channel|>final<|message|>" if thinking == "channels" else ""


class OutputParser(HarmonyReader):
    def __init__(self, form: OutputForm) -> None:
        super().__init__(form.calls, form.tools, form.several)
        self._marks = CALL_MARKS[form.calls] if form.calls else None
        self._required = form.required
        self._cut = False
        self._has_content = False
        self._reading = (
            self._read_messages(begun=form.thinking == "continued")
            if form.has_messages
            else self._answer(form.thinking)
        )

    def feed(self, text: str, last: str | None = None) -> list[OutputPart]:
        """Reads more text. Returns the parts that are now certain. `last`: the finish reason, given with the last
        text."""
        self._held.text += text
        next(self._reading, None)
        if last is not None:
            self._held.ended, self._cut = True, last == "length"
            next(self._reading, None)
        parts, self._parts = self._parts, []
        return parts

    def feed_whole(self, text: str, last: str | None = None) -> Iterator[OutputText | CallEnded]:
        """Yields the texts and whole calls of `feed`. A broken call becomes text, except by law 4."""
        for part in self.feed(text, last):
            if isinstance(part, CallEnded) and part.broken:
                if not (self._cut or self._required):
                    yield OutputText(part.broken)
            elif isinstance(part, OutputText | CallEnded):
                yield part

    def ending(self, last: str | None) -> str | None:
        """Returns "tool_calls" if the answer stopped after whole calls, else `last`."""
        return "tool_calls" if last == "stop" and self.calls and not self.broken else last

    def _answer(self, thinking: Thinking) -> Waiting[None]:
        held = self._held
        if thinking == "marked":
            yield from held.spaces()
            if not (yield from held.one_of(_OPEN_REASONING)):
                thinking, held.text = "", held.raw + held.text
        held.raw = ""
        if thinking:
            yield from held.spaces()
            yield from self._read_reasoning()
            yield from held.spaces()
            held.raw = ""
        if self._marks is not None:
            yield from self._contents(self._marks)
            return
        while True:
            self._emit_text(held.consume(len(held.text)))
            yield

    def _read_reasoning(self) -> Waiting[None]:
        held = self._held
        while (at := held.text.find(_CLOSE_REASONING)) < 0:
            self._emit_text(held.consume(_certain(held.text, _CLOSE_REASONING)), reasoning=True)
            if held.ended:
                self._emit_text(held.consume(len(held.text)).rstrip(SPACE), reasoning=True)
                return
            yield
        self._emit_text(held.consume(at).rstrip(SPACE), reasoning=True)
        held.consume(len(_CLOSE_REASONING))

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
                self._emit_text(held.raw)
            except Mismatch:
                self._emit_text(held.raw)
        rest = held.consume(len(held.text))
        begun = any(mark.startswith(rest.strip(SPACE)) for mark in marks.separating)
        if not (begun and self._cut and (self.calls or not self._has_content)):
            self._emit_text(rest.rstrip(SPACE) if self.calls else rest)

    def _before_call(self, marks: CallMarks) -> Waiting[str | None]:
        """Reports the text before the next call. Returns the call's opener, "" for a bare call, None at the end."""
        held = self._held
        while True:
            rest = held.text.lstrip(SPACE)
            begun = not held.ended and any(mark.startswith(rest) for mark in marks.openers)
            opened = begun or rest.startswith(marks.openers)
            bare = "" if self._has_content else marks.bare
            if bare and rest.startswith(bare) and not opened:
                held.consume(len(held.text) - len(rest))
                return ""
            found = [(at, mark) for mark in marks.openers if (at := held.text.find(mark)) >= 0]
            if found:
                at, mark = min(found)
                self._emit_text(held.consume(len(held.text[:at].rstrip(SPACE))))
                held.consume(len(held.text) - len(held.text.lstrip(SPACE)) + len(mark))
                return mark
            if held.ended:
                return None
            if not (bare and begun):
                self._emit_text(held.consume(_certain(held.text, *marks.openers)))
            yield

    def _emit_text(self, text: str, *, reasoning: bool = False) -> None:
        self._held.raw = ""
        if text and (reasoning or not self._required):
            self._parts.append(OutputText(text, reasoning))
            self._has_content = self._has_content or not reasoning


def _certain(text: str, *marks: str) -> int:
    """Returns the text's length without a begun mark and white space at the end."""
    return len(text[: len(text) - begun_length(text, *marks)].rstrip(SPACE))
