"""Reads answers in OpenAI's Harmony format. Pure. An answer has messages. A message has a header and a text:
`<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`.
The prompt has the first `<|start|>assistant`. A role may come before the recipient's `to=`, and a channel after it.

A message to a known tool is a call. Another message is reasoning in the channel `analysis`, otherwise content, as in
vLLM and llama.cpp. An empty line joins messages of a kind. Marks, headers and white space between messages are no text.
A header without `<|message|>` is left out if it is short; otherwise it is content, like text outside messages.
"""

import re
from typing import Final

from tpiedge.model.call_reader import CALL_MARKS, MAX_HEAD, CallReader
from tpiedge.model.held_text import Mismatch, Waiting, begun_length

_CHANNEL: Final = "<|channel|>"
_TEXT: Final = "<|message|>"
_ENDS: Final = CALL_MARKS["harmony"].closers
_MARKS: Final = CALL_MARKS["harmony"].separating
_MARK: Final = re.compile("|".join(map(re.escape, _MARKS)))
_HEADER_END: Final = re.compile("|".join(map(re.escape, (_TEXT, "<|start|>", *_ENDS))))
_OPENERS: Final = (*_MARKS, "to=")
_RECIPIENT: Final = re.compile(r"to=([^\s<]+)")


class HarmonyReader(CallReader):
    """Reads the messages of one answer."""

    def _read_messages(self, *, begun: bool) -> Waiting[None]:
        """Reads the whole answer. If `begun`, the prompt ends within a message of content."""
        held = self._held
        self._said: set[bool] = set()
        if begun:
            yield from self._read_text(reasoning=False)
        while held.text or not held.ended:
            yield from held.spaces()
            opened = yield from held.one_of(*_OPENERS)
            if not opened and any(mark.startswith(held.text) for mark in _OPENERS):
                return
            if not opened:
                yield from self._read_text(reasoning=False)
            elif opened not in _ENDS:
                yield from self._read_message(opened)

    def _read_message(self, header: str) -> Waiting[None]:
        """Reads a message after the beginning of its header."""
        held = self._held
        if header != _TEXT:
            while (end := _HEADER_END.search(held.text, 0, MAX_HEAD)) is None:
                if len(held.text) >= MAX_HEAD:
                    return
                if held.ended:
                    held.consume(len(held.text))
                    return
                yield
            header += held.consume(end.start())
            if not (yield from held.one_of(_TEXT)):
                return
        reasoning = header.rpartition(_CHANNEL)[2].lstrip().startswith("analysis")
        recipient = _RECIPIENT.search(header)
        name = recipient[1].removeprefix("functions.") if recipient else ""
        if name in self._tools:
            yield from held.spaces()
            if held.text.startswith("{"):
                held.raw = ""
                try:
                    yield from self._object(name)
                except Mismatch:
                    self._end(held.raw)
                return
        yield from self._read_text(reasoning=reasoning)

    def _read_text(self, *, reasoning: bool) -> Waiting[None]:
        """Reports text up to the next mark."""
        held, between = self._held, "\n\n" if reasoning in self._said else ""
        while True:
            mark = _MARK.search(held.text)
            begun = 0 if held.ended else begun_length(held.text, *_MARKS)
            text = held.consume(mark.start() if mark else len(held.text) - begun)
            if text:
                self._emit_text(between + text, reasoning=reasoning)
                self._said.add(reasoning)
                between = ""
            if mark or held.ended:
                return
            yield
