"""Holds text that arrives in pieces, and follows JSON values in it. Its readers are generators, which yield when
they need more text. Pure."""

import json
import math
import string
from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")
Waiting = Generator[None, None, T]  # yields to wait for more text or for its end
SPACE: Final = " \t\r\n"
_IN_WORD: Final = frozenset(f"-+.{string.digits}{string.ascii_letters}")


class Mismatch(Exception):
    """The text does not match what the reader expects."""


class TextEnded(Mismatch):
    """The text ends before a match is decided."""


class HeldText:
    """Holds text that is not consumed yet. The places where it was cut do not matter."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        self.raw = ""  # what was consumed since `raw` was last cleared

    def consume(self, count: int) -> str:
        consumed, self.text = self.text[:count], self.text[count:]
        self.raw += consumed
        return consumed

    def more(self) -> Waiting[None]:
        """Waits for more text. Raises TextEnded at the end of the text."""
        if self.ended:
            raise TextEnded
        yield

    def spaces(self) -> Waiting[None]:
        while True:
            self.consume(len(self.text) - len(self.text.lstrip(SPACE)))
            if self.text or self.ended:
                return
            yield

    def one_of(self, *marks: str) -> Waiting[str]:
        """Consumes and returns the next mark, or returns "" if no mark comes."""
        while True:
            found = next((mark for mark in marks if self.text.startswith(mark)), "")
            if found:
                return self.consume(len(found))
            if self.ended or not any(mark.startswith(self.text) for mark in marks):
                return ""
            yield

    def expect(self, *marks: str) -> Waiting[str]:
        """Consumes white space and a mark. Raises Mismatch if no mark comes."""
        yield from self.spaces()
        found = yield from self.one_of(*marks)
        if not found:
            raise self.mismatch(*marks)
        return found

    def mismatch(self, *marks: str) -> Mismatch:
        return TextEnded() if self.ended and any(mark.startswith(self.text) for mark in marks) else Mismatch()

    def until(self, mark: str, most: int) -> Waiting[str]:
        """Consumes text and the mark; returns the text. Raises Mismatch if the text is longer than `most`."""
        while True:
            at = self.text.find(mark, 0, most + len(mark))
            if at >= 0:
                return self.consume(at + len(mark))[:at]
            if len(self.text) >= most + len(mark):
                raise Mismatch
            yield from self.more()


def begun_length(text: str, *marks: str) -> int:
    """Counts the last characters of `text` that may begin a mark."""
    longest = min(max(map(len, marks)) - 1, len(text))
    endings = (n for n in range(longest, 0, -1) if any(mark.startswith(text[-n:]) for mark in marks))
    return next(endings, 0)


class JsonScan:
    """Follows an arriving JSON value by quotes and brackets. `json.loads` checks the whole value."""

    def __init__(self) -> None:
        self.whole = False  # a number or word ends with the next character, or with `finish`
        self.broken = False
        self._read: list[str] = []
        self._depth = 0
        self._quoted = self._escaped = self._word = False

    def feed(self, text: str) -> int:
        """Reads the next piece. Returns how many characters belong to the value."""
        for at, mark in enumerate(text):
            if self._word and mark not in _IN_WORD:
                self._end()
            elif not self.whole:
                self._mark(mark)
            if self.whole or self.broken:
                return at
            self._read.append(mark)
            if mark in '"}]' and not (self._quoted or self._depth):
                self._end()
                return at + 1
        return len(text)

    def finish(self) -> bool:
        """Ends a number or word. Returns whether the value is whole."""
        if self._word and not self.whole:
            self._end()
        return self.whole

    def _mark(self, mark: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped, self._quoted = mark == "\\", mark != '"'
        elif mark == '"':
            self._quoted = True
        elif mark in "{[}]":
            self._depth += 1 if mark in "{[" else -1
            self.broken = not 0 <= self._depth <= 128
        elif not self._depth and not self._word:
            self._word = mark in "-0123456789tfn"
            self.broken = not self._word and mark not in SPACE

    def _end(self) -> None:
        try:
            json.loads("".join(self._read), parse_constant=_number, parse_float=_number, parse_int=_number)
            self.whole = True
        except (ValueError, RecursionError):
            self.broken = True


def _number(text: str) -> float:
    if len(text) > 1000 or not math.isfinite(float(text)):
        raise ValueError
    return float(text)
